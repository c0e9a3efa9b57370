package fabric

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// holder returns which of the processes has the socket with a local and a remote address on loopback; zero when none has.
func holder(local, remote netip.AddrPort, pids []int) int {
	inode := inodeOf(local, remote)
	if inode == "" {
		return 0
	}
	want := "socket:[" + inode + "]"
	for _, pid := range pids {
		dir := filepath.Join("/proc", fmt.Sprint(pid), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == want {
				return pid
			}
		}
	}
	return 0
}

// inodeOf looks a TCP socket up in the kernel's table.
func inodeOf(local, remote netip.AddrPort) string {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && fields[1] == kernelAddress(local) && fields[2] == kernelAddress(remote) {
			return fields[9]
		}
	}
	return ""
}

// kernelAddress is an IPv4 address as the kernel prints it: the bytes as a number of this machine, and the port.
func kernelAddress(a netip.AddrPort) string {
	b := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}

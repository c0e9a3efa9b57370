package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// The range is the one for measurements of networks, which no real host has.
	networkPrefix = "198.18.0."
	device        = "fabric0"
	deviceMTU     = 9000
	firstPort     = 7400
)

// Namespaces is a network of kernel namespaces.
type Namespaces struct {
	rules *rules
	mu    sync.Mutex
	hosts map[string]*host
	wg    sync.WaitGroup
}

// host is a namespace with one interface, whose packets this process reads and writes.
type host struct {
	name   string
	ns     netns.NsHandle // closed for the host of this process
	ip     netip.Addr
	tun    *os.File
	egress *shaper
	ports  int
}

// NewNamespaces makes a network whose Clients host is the namespace of this process. It needs the rights to make
// namespaces and interfaces; the error says which one is missing.
//
// The process should be in a network namespace of its own (see Isolate), so that the host's network stays as it is.
func NewNamespaces(seed uint64) (*Namespaces, error) {
	n := &Namespaces{rules: newRules(seed), hosts: map[string]*host{}}
	if err := n.addHost(Clients, false); err != nil {
		return nil, err
	}
	return n, nil
}

// Kind implements Network.
func (n *Namespaces) Kind() string { return "namespaces" }

// Add implements Network.
func (n *Namespaces) Add(name string) (Place, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[name] == nil {
		if err := n.addHost(name, true); err != nil {
			return Place{}, err
		}
	}
	h := n.hosts[name]
	address := net.JoinHostPort(h.ip.String(), fmt.Sprint(firstPort+h.ports))
	h.ports++
	return Place{Listen: address, Advertise: address, Start: h.start}, nil
}

// addHost makes a host. The caller holds mu, or is alone.
func (n *Namespaces) addHost(name string, apart bool) error {
	last := len(n.hosts) + 1
	if last > 250 {
		return errors.New("make a host: a network has at most 250")
	}
	h := &host{name: name, ip: netip.MustParseAddr(networkPrefix + fmt.Sprint(last)), ns: netns.None()}
	err := onThread(func() error {
		if apart {
			here, err := netns.Get()
			if err != nil {
				return fmt.Errorf("find the network namespace: %w", err)
			}
			defer here.Close()
			if h.ns, err = netns.New(); err != nil {
				return fmt.Errorf("make a network namespace (it needs CAP_SYS_ADMIN): %w", err)
			}
			defer func() {
				if err := netns.Set(here); err != nil {
					panic(fmt.Sprintf("return to the network namespace: %v", err)) // this thread is lost
				}
			}()
		}
		var err error
		h.tun, err = openDevice(h.ip)
		return err
	})
	if err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	h.egress = newShaper(func(p []byte) { n.forward(h, p) })
	n.hosts[name] = h
	n.wg.Go(func() { n.read(h) })
	n.wg.Go(h.egress.run)
	return nil
}

// onThread runs fn on a thread of its own, since a namespace is a thread's.
func onThread(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return fn()
}

// openDevice makes the interface of the present namespace and returns its other end.
func openDevice(ip netip.Addr) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(device)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, errors.Join(fmt.Errorf("make an interface (it needs CAP_NET_ADMIN): %w", err), unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "tun")
	if err := configure(ip); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func configure(ip netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	addr, err := netlink.ParseAddr(ip.String() + "/24")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetMTU(link, deviceMTU), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
}

// start runs a command in the host.
func (h *host) start(cmd *exec.Cmd) error {
	return onThread(func() error {
		here, err := netns.Get()
		if err != nil {
			return err
		}
		defer here.Close()
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("enter the network namespace of %s: %w", h.name, err)
		}
		err = cmd.Start()
		if back := netns.Set(here); back != nil {
			panic(fmt.Sprintf("return to the network namespace: %v", back)) // this thread is lost
		}
		return err
	})
}

// Set implements Network.
func (n *Namespaces) Set(from, to string, r Rule) { n.rules.set(from, to, r) }

// Rate implements Network.
func (n *Namespaces) Rate(name string, bytesPerSecond int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hosts[name]; h != nil {
		h.egress.limit(bytesPerSecond)
	}
}

// Heal implements Network.
func (n *Namespaces) Heal() {
	n.rules.clear()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		h.egress.limit(0)
	}
}

// Close implements Network. The interfaces go with their files.
func (n *Namespaces) Close() error {
	var errs []error
	n.mu.Lock()
	for _, h := range n.hosts {
		errs = append(errs, h.tun.Close())
		h.egress.close()
		if h.ns.IsOpen() {
			errs = append(errs, h.ns.Close())
		}
	}
	n.mu.Unlock()
	n.wg.Wait()
	return errors.Join(errs...)
}

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/config"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), "ca.pem")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate for loopback, with a serial number, over what files named before.
func (a *authority) issue(t *testing.T, files config.TLS, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, files.Key, "EC PRIVATE KEY", raw)
	writePEM(t, files.Cert, "CERTIFICATE", der)
}

func (a *authority) files(t *testing.T, serial int64) config.TLS {
	t.Helper()
	dir := t.TempDir()
	f := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: a.file}
	a.issue(t, f, serial)
	return f
}

func flagsOf(f config.TLS) []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
}

// TestMutualTLSBetweenAllParts runs three controllers and two agents over TLS: raft, forwarding, watches, appends
// from agent to agent, moves and the command line. Without a certificate nobody gets an answer.
func TestMutualTLSBetweenAllParts(t *testing.T) {
	ca := newAuthority(t)
	creds := flagsOf(ca.files(t, 7))
	var addrs, peers []string
	for _, name := range []string{"ctl-1", "ctl-2", "ctl-3"} {
		addrs = append(addrs, nobody(t))
		peers = append(peers, name+"="+addrs[len(addrs)-1])
	}
	all := strings.Join(addrs, ",")
	var daemons []*process
	for i, a := range addrs {
		name, _, _ := strings.Cut(peers[i], "=")
		args := []string{"controller", "--name", name, "--listen", a, "--data-dir", t.TempDir(), "--peers", strings.Join(peers, ",")}
		daemons = append(daemons, start(t, append(args, creds...)...))
	}
	for _, id := range []string{"node-1", "node-2"} {
		args := []string{"agent", "--node-id", id, "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--controllers", all}
		daemons = append(daemons, start(t, append(args, creds...)...))
	}
	with := func(args ...string) []string { return append(append(args, "--addr", all), creds...) }
	eventually(t, "two nodes", func() bool {
		return strings.Count(run(t, "", with("cluster", "members")...).stdout, "alive") == 2
	})
	ok(t, "", with("topic", "create", "t", "--partitions", "4")...)
	ok(t, strings.Repeat("x\n", 200), with("produce", "t")...)
	ok(t, "", with("cluster", "decommission", "node-1", "--wait", "--timeout", patience.String())...)
	if n := strings.Count(ok(t, "", with("consume", "t", "-g", "g", "--ack")...), "\tx\n"); n < 200 {
		t.Errorf("consumed %d records, want 200", n)
	}
	if r := run(t, "", "cluster", "members", "--addr", all, "--timeout", "2s"); r.code == codeDone {
		t.Errorf("plain HTTP was answered: %s", r)
	}
	stranger := flagsOf(newAuthority(t).files(t, 8))
	if r := run(t, "", append([]string{"cluster", "members", "--addr", all, "--timeout", "2s"}, stranger...)...); r.code == codeDone {
		t.Errorf("a certificate of another authority was accepted: %s", r)
	}
	if r := run(t, "", "cluster", "members", "--addr", all, "--tls-cert", "x"); r.code != codeUsage {
		t.Errorf("half of the credentials: %s", r)
	}
	for _, d := range daemons {
		d.end(t)
	}
}

// TestCertificatesAreReadAgain: a new pair is used by new connections; half a rotation leaves the old one.
func TestCertificatesAreReadAgain(t *testing.T) {
	ca := newAuthority(t)
	files := ca.files(t, 1)
	c, err := loadCredentials(files)
	if err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		c.mu.Lock()
		c.mu.checked = time.Time{} // as if a second had passed
		c.mu.Unlock()
		cert, err := c.certificate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.Int64()
	}
	if n := serial(); n != 1 {
		t.Errorf("serial number %d, want 1", n)
	}
	if err := os.WriteFile(files.Cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := serial(); n != 1 {
		t.Errorf("with a broken file: serial number %d, want 1", n)
	}
	ca.issue(t, files, 2)
	if n := serial(); n != 2 {
		t.Errorf("after the rotation: serial number %d, want 2", n)
	}
	if c.server().MinVersion != tls.VersionTLS13 || c.server().ClientAuth != tls.RequireAndVerifyClientCert {
		t.Error("the server does not ask for TLS 1.3 with a client's certificate")
	}
}

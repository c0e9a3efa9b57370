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
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// tlsOptions makes an authority and one certificate that all parts share, and turns the harness to TLS. The caller turns it
// back.
func tlsOptions(dir string) (harness.Options, error) {
	ca, caKey, err := certificate(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return harness.Options{}, err
	}
	leaf, leafKey, err := certificate(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "part"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
	if err != nil {
		return harness.Options{}, err
	}
	key, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		return harness.Options{}, err
	}
	blocks := map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: leaf.Raw}, "key": {Type: "EC PRIVATE KEY", Bytes: key}, "ca": {Type: "CERTIFICATE", Bytes: ca.Raw},
	}
	var args []string
	for name, b := range blocks {
		path := filepath.Join(dir, name+".pem")
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			return harness.Options{}, err
		}
		args = append(args, "--tls-"+name, path)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	harness.Secure(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: leafKey}},
	})
	return harness.Options{ControllerArgs: args, AgentArgs: args}, nil
}

// certificate makes a certificate of a template, signed by parent, or by itself without one.
func certificate(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return cert, key, err
}

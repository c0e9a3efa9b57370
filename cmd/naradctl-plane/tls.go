package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/naradctl/naradctl-plane/internal/config"
)

// recheckCerts is how often the files are looked at for a change, at most: at handshakes.
const recheckCerts = time.Second

// credentials are one certificate, its key and the authority that signed all of the cluster's. Every
// connection is mutually authenticated: both sides show a certificate of that authority. A nil *credentials
// means plain HTTP.
//
// Certificate and key are read again when they change. A pair that can't be read leaves the old one in
// use, so that half a rotation does no harm. The authority is read at start.
type credentials struct {
	files config.TLS
	pool  *x509.CertPool

	mu struct {
		sync.Mutex
		cert    *tls.Certificate
		stamp   string
		checked time.Time
	}
}

// loadCredentials reads the files; nil when none is named.
func loadCredentials(files config.TLS) (*credentials, error) {
	if !files.Enabled() {
		return nil, nil
	}
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, fmt.Errorf("tls.ca: %w", err)
	}
	c := &credentials{files: files, pool: x509.NewCertPool()}
	if !c.pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.ca: %s holds no certificate in PEM", files.CA)
	}
	if _, err := c.certificate(); err != nil {
		return nil, fmt.Errorf("tls.cert, tls.key: %w", err)
	}
	return c, nil
}

// stampOf changes when one of the files does.
func stampOf(paths ...string) (string, error) {
	var s string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return "", err
		}
		s += fmt.Sprintf("%d.%d;", info.ModTime().UnixNano(), info.Size())
	}
	return s, nil
}

func (c *credentials) certificate() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.cert != nil && time.Since(c.mu.checked) < recheckCerts {
		return c.mu.cert, nil
	}
	c.mu.checked = time.Now()
	stamp, err := stampOf(c.files.Cert, c.files.Key)
	if err == nil && c.mu.cert != nil && stamp == c.mu.stamp {
		return c.mu.cert, nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	}
	if err != nil {
		if c.mu.cert != nil {
			return c.mu.cert, nil
		}
		return nil, err
	}
	c.mu.cert, c.mu.stamp = &cert, stamp
	return c.mu.cert, nil
}

// server is for a listener.
func (c *credentials) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  c.pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.certificate()
		},
	}
}

// client is for connections to daemons; nil without credentials.
func (c *credentials) client() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    c.pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.certificate()
		},
	}
}

// scheme is what addresses are dialled with.
func (c *credentials) scheme() string {
	if c == nil {
		return "http"
	}
	return "https"
}

// http1 speaks HTTP/1.1: each call in flight has a connection of its own, and a stuck one is discarded.
func (c *credentials) http1(dial time.Duration, idlePerHost int) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dial, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     c.client(),
		TLSHandshakeTimeout: dial,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: idlePerHost,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// http2 speaks HTTP/2 and finds dead connections by pings. Nil without credentials: its user has its own
// for plain HTTP.
func (c *credentials) http2() http.RoundTripper {
	if c == nil {
		return nil
	}
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     c.client(),
		TLSHandshakeTimeout: 5 * time.Second,
		Protocols:           new(http.Protocols),
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
		DisableCompression:  true,
	}
	t.Protocols.SetHTTP2(true)
	return t
}

// credentialsFlags are the command line tool's.
func (a *app) credentialsFlags(set func(p *string, name, value, usage string)) {
	set(&a.tls.Cert, "tls-cert", os.Getenv("NARADPLANE_TLS_CERT"), "certificate in PEM, for daemons that use TLS (environment: NARADPLANE_TLS_CERT)")
	set(&a.tls.Key, "tls-key", os.Getenv("NARADPLANE_TLS_KEY"), "its key (environment: NARADPLANE_TLS_KEY)")
	set(&a.tls.CA, "tls-ca", os.Getenv("NARADPLANE_TLS_CA"), "certificate of the authority (environment: NARADPLANE_TLS_CA)")
}

// dialCredentials loads what the flags name.
func (a *app) dialCredentials() error {
	if !a.tls.Enabled() {
		return nil
	}
	if a.tls.Cert == "" || a.tls.Key == "" || a.tls.CA == "" {
		return withCode(codeUsage, errors.New("--tls-cert, --tls-key and --tls-ca go together"))
	}
	var err error
	a.creds, err = loadCredentials(a.tls)
	if err != nil {
		return withCode(codeUsage, err)
	}
	return nil
}

package api

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/controller"
)

// UserHeader is by which an operator's client says who uses it. Nothing proves it; a name in the client
// certificate comes first.
const UserHeader = "Naradplane-User"

// actorHeader carries a forwarded request's actor to the leader.
const actorHeader = "Naradplane-Actor"

// maxUser bounds what a client may call its user.
const maxUser = 100

// withActor says on whose behalf a request's commands are proposed.
func withActor(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(controller.WithActor(r.Context(), actorOf(r))))
	})
}

// actorOf is who sent a request. A controller that forwards one is believed about it: with the cluster's
// credentials everybody may do everything, so there is nothing to be gained by a lie.
func actorOf(r *http.Request) cluster.Actor {
	if hops(r) > 0 {
		if a, ok := decodeActor(r.Header.Get(actorHeader)); ok {
			return a
		}
	}
	a := cluster.Actor{Kind: cluster.ActorOperator}
	if strings.HasPrefix(r.URL.Path, "/naradplane.v1.NodeService/") {
		a.Kind = cluster.ActorAgent
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		a.Address = host
	}
	if a.Kind == cluster.ActorAgent {
		return a // its requests name the node
	}
	a.Name = printable(r.Header.Get(UserHeader))
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if name := printable(r.TLS.PeerCertificates[0].Subject.CommonName); name != "" {
			a.Name, a.Verified = name, true
		}
	}
	return a
}

// printable keeps what can be shown in a line.
func printable(s string) string {
	s = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, strings.ToValidUTF8(s, ""))
	if len(s) > maxUser {
		s = strings.ToValidUTF8(s[:maxUser], "")
	}
	return strings.TrimSpace(s)
}

func encodeActor(a cluster.Actor) string {
	v := url.Values{"kind": {strconv.Itoa(int(a.Kind))}, "name": {a.Name}, "address": {a.Address}}
	if a.Verified {
		v.Set("verified", "true")
	}
	return v.Encode()
}

func decodeActor(s string) (cluster.Actor, bool) {
	v, err := url.ParseQuery(s)
	if err != nil || s == "" {
		return cluster.Actor{}, false
	}
	kind, err := strconv.ParseUint(v.Get("kind"), 10, 8)
	k := cluster.ActorKind(kind)
	if err != nil || k < cluster.ActorOperator || k > cluster.ActorAgent {
		return cluster.Actor{}, false
	}
	return cluster.Actor{Kind: k, Name: printable(v.Get("name")), Verified: v.Get("verified") == "true", Address: printable(v.Get("address"))}, true
}

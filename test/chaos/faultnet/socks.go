package faultnet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"time"
)

// SOCKS5 (RFC 1928): the little of it a client's CONNECT needs.
const (
	socksVersion = 5
	socksConnect = 1
	socksIPv4    = 1
	socksDomain  = 3
	socksIPv6    = 4

	replyOK          = 0
	replyFailed      = 1
	replyRefused     = 5
	replyBadCommand  = 7
	replyBadAddress  = 8
	socksNoAuth      = 0
	socksNoMethod    = 0xff
	socksReplyLength = 10
)

var (
	errSocks   = errors.New("faultnet: not a SOCKS5 CONNECT")
	errAddress = errors.New("faultnet: SOCKS5 address type not known")
)

func (n *Net) socks(c *net.TCPConn) {
	_ = c.SetDeadline(time.Now().Add(connectTimeout))
	target, err := socksRequest(c)
	if err != nil {
		n.release(c)
		if errors.Is(err, errAddress) {
			reply(c, replyBadAddress)
		} else if errors.Is(err, errSocks) {
			reply(c, replyBadCommand)
		}
		reset(c)
		return
	}
	switch n.admit() {
	case Refuse:
		reply(c, replyRefused)
		n.release(c)
		_ = c.Close()
		return
	case Silent:
		n.silent(c)
		return
	}
	server, err := n.connect(context.Background(), "tcp", target)
	n.release(c)
	if err != nil {
		code := byte(replyFailed)
		if isRefused(err) {
			code = replyRefused
		}
		reply(c, code)
		_ = c.Close()
		return
	}
	_ = c.SetDeadline(time.Time{})
	reply(c, replyOK)
	n.relay(c, server, target)
}

// socksRequest reads greeting and request and returns the target address.
func socksRequest(rw io.ReadWriter) (string, error) {
	var head [4]byte
	if _, err := io.ReadFull(rw, head[:2]); err != nil {
		return "", err
	}
	if head[0] != socksVersion {
		return "", errors.New("faultnet: not SOCKS5")
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(rw, methods); err != nil {
		return "", err
	}
	method := byte(socksNoMethod)
	for _, m := range methods {
		if m == socksNoAuth {
			method = socksNoAuth
		}
	}
	if _, err := rw.Write([]byte{socksVersion, method}); err != nil {
		return "", err
	}
	if method == socksNoMethod {
		return "", errors.New("faultnet: the client insists on authentication")
	}
	if _, err := io.ReadFull(rw, head[:4]); err != nil {
		return "", err
	}
	if head[0] != socksVersion || head[1] != socksConnect {
		return "", errSocks
	}
	return socksAddress(rw, head[3])
}

func socksAddress(r io.Reader, kind byte) (string, error) {
	size := 0
	switch kind {
	case socksIPv4:
		size = net.IPv4len
	case socksIPv6:
		size = net.IPv6len
	case socksDomain:
		var one [1]byte
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return "", err
		}
		size = int(one[0])
	default:
		return "", errAddress
	}
	b := make([]byte, size+2)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", err
	}
	host := string(b[:size])
	if kind != socksDomain {
		host = net.IP(b[:size]).String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(binary.BigEndian.Uint16(b[size:])))), nil
}

func reply(w io.Writer, code byte) {
	var b [socksReplyLength]byte
	b[0], b[1], b[3] = socksVersion, code, socksIPv4
	_, _ = w.Write(b[:])
}

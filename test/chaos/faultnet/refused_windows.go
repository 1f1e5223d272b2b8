package faultnet

import (
	"errors"
	"syscall"
)

// wsaRefused is WSAECONNREFUSED: on Windows a dial fails with the socket library's
// own number, which syscall.ECONNREFUSED does not equal.
const wsaRefused syscall.Errno = 10061

func isRefused(err error) bool {
	return errors.Is(err, wsaRefused) || errors.Is(err, syscall.ECONNREFUSED)
}

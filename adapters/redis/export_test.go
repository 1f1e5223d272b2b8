package redis

import "github.com/varal-go/varal/core/driver"

// For the tests of pure functions.
var (
	OffsetOf = offsetOf
	IDOf     = idOf
	Before   = before
	ClassOf  = classOf
	PackHead = packHead
)

// UnpackHead reads a packed head.
func UnpackHead(s string) (driver.Message, int64, error) {
	var m driver.Message
	expires, err := unpackHead(s, &m)
	return m, expires, err
}

// ReadRecord reads the fields of an entry.
func ReadRecord(id string, fields ...any) (driver.Message, error) {
	r := readRecord(id, fields)
	return r.msg, r.err
}

// ReplyError is an error reply as a script passes it on.
func ReplyError(s string) error { return replyError(s) }

// Answers is what each client carries.
type Answers = answers

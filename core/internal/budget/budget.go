// Package budget bounds what is in flight, in records and in bytes.
package budget

// Budget counts what is in use against its limits. Not safe for concurrent use.
type Budget struct {
	MaxRecords int
	MaxBytes   int64
	records    int
	bytes      int64
}

// Room is what may still be taken, both 0 when either limit is reached.
func (b *Budget) Room() (records int, bytes int64) {
	records, bytes = b.MaxRecords-b.records, b.MaxBytes-b.bytes
	if records <= 0 || bytes <= 0 {
		return 0, 0
	}
	return records, bytes
}

// InUse is what has been taken and not given back.
func (b *Budget) InUse() (records int, bytes int64) { return b.records, b.bytes }

// Take adds a message.
func (b *Budget) Take(size int) { b.records++; b.bytes += int64(size) }

// Give returns a message's share.
func (b *Budget) Give(size int) { b.records--; b.bytes -= int64(size) }

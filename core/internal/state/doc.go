// Package state is the codec of the commit state: what is stored beside a committed
// position so that, after a crash, what was completed behind a stuck record is not
// processed again.
//
// A commit alone says "everything before Base is done". One record that takes long, or
// fails and waits, pins Base while thousands behind it complete; the state says which.
// It is advice under one law: it may forget that a record was completed (which is then
// processed again), it must never call one completed that was not. So whatever does not
// fit exactly, the start of the log, its end, the key function, a single bit, is
// ignored as a whole.
//
// # Layout
//
//	 0      2     3       4                                                len-4
//	+------+-----+-------+----------+--------------------+------------------+--------+
//	| 'S1' | enc | keyFn | H - Base | body               | failed           | crc32c |
//	|      | 1 B | 1 B   | varint   | by enc             |                  | 4 B    |
//	+------+-----+-------+----------+--------------------+------------------+--------+
//
//	H       last position the body speaks about, and a completed one where any is:
//	        what comes after it is not known and will be processed
//	crc32c  over source, partition (each behind its length), Base (8 B) and all the
//	        bytes before it, so a state says nothing beside another commit
//
//	enc 1   key vector: n, n x key, runs of the unfinished records without a key
//	          key = varint((first - previous first) << 1 | tried)   by first, which several may share
//	                hash40 of the key (5 B)
//	                attempts of that first record (1 B, only if tried)
//	        A record with a key is completed if its key is absent or it comes before
//	        the key's first; one without a key if no run holds it.
//	enc 2   runs: n, n x run of unfinished records
//	          run = varint(completed before it << 1 | long), varint(length - 2) if long
//	enc 3   bitmap: bit i (lowest first) = Base+i is unfinished; spare bits are 0
//	enc 4   runs,   deflated: raw length, deflated length, bytes
//	enc 5   bitmap, deflated: the same
//
//	failed  n, and if n > 0: the earliest due; n x
//	          varint(position - previous), varint(attempts << 1 | waiting),
//	          varint(due - earliest due) if waiting
//	        Unfinished records that have failed or wait; also such behind H. What a key
//	        vector has said (the first record of a key, not waiting) is not repeated.
//
// Integers are varints (encoding/binary, shortest form only) unless a size is given.
// "Previous" is Base for the first of a list.
//
// # Why these bodies
//
// With order by key, the completed records of a key are a prefix: one position per key
// that has work left is exact, whatever the span, where any encoding by position grows
// with the records of a blocked key. Keys are in the order of their first unfinished
// record, not of their hash: those positions are close together, so their differences
// take one byte where hash differences would save less than one, and a prefix of the
// list is the vector of a prefix of the log. Two keys of the same hash share the
// earlier position, which costs a replay and never a record.
//
// Work without order has no such prefix: runs for few holes, a bitmap for many, either
// deflated when it is long. The smallest that fits is taken. If none fits, H moves back
// to the longest prefix that does.
package state

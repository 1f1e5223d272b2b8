package driver_test

import (
	"fmt"
	"testing"

	"github.com/varal-go/varal/core/driver"
)

// Published vectors: org.apache.kafka.common.utils.UtilsTest.testMurmur2.
var murmur2 = map[string]int32{
	"21":                         -973932308,
	"foobar":                     -790332482,
	"a-little-bit-long-string":   -985981536,
	"a-little-bit-longer-string": -1486304829,
	"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
	"abc": 479470107,
}

func TestPartitionOfIsKafkas(t *testing.T) {
	t.Parallel()
	for key, hash := range murmur2 {
		// With 2^31-1 partitions and with 2^31 the number shows every bit that counts.
		for _, n := range []int{1, 2, 3, 7, 8, 12, 100, 1<<31 - 1, 1 << 31} {
			want := int(uint32(hash)&0x7fffffff) % n // Utils.toPositive(hash) % n
			if got := driver.PartitionOf(key, n); got != want {
				t.Errorf("PartitionOf(%q, %d) = %d, want %d", key, n, got, want)
			}
		}
	}
}

func TestPartitionOfSpreads(t *testing.T) {
	t.Parallel()
	const n, keys = 8, 8000
	var count [n]int
	for i := range keys {
		count[driver.PartitionOf(fmt.Sprint("table-", i), n)]++
	}
	for p, c := range count {
		if c < keys/n*8/10 || c > keys/n*12/10 {
			t.Errorf("partition %d has %d of %d keys", p, c, keys)
		}
	}
}

func TestPartitionOfNothingPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic for 0 partitions")
		}
	}()
	_ = driver.PartitionOf("k", 0)
}

func FuzzPartitionOf(f *testing.F) {
	for key := range murmur2 {
		f.Add(key, 8)
	}
	f.Add("", 1)
	f.Fuzz(func(t *testing.T, key string, n int) {
		if n < 1 {
			t.Skip("no partitions")
		}
		p := driver.PartitionOf(key, n)
		if p < 0 || p >= n || p != driver.PartitionOf(key, n) {
			t.Errorf("PartitionOf(%q, %d) = %d", key, n, p)
		}
	})
}

package driver

// PartitionOf maps a key to one of n partitions: Kafka's murmur2, the same law as
// the Java client's default partitioner, used for shard queues, shard streams and
// memory too. An adapter spreads keyless messages itself. It panics if n < 1.
func PartitionOf(key string, n int) int {
	return int(murmur2(key)&0x7fffffff) % n
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2.
func murmur2(b string) uint32 {
	const m, r = uint32(0x5bd1e995), 24
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for len(b) >= 4 {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
		b = b[4:]
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

package redis

// For the tests of pure functions.
var (
	Quota = quota
	Pick  = pick
)

// Portions returns what each source is asked for, by source, and where the next turn
// begins.
func Portions(room, n, first int) (sizes map[int]int, next int) {
	out, next := portions(room, n, first)
	sizes = map[int]int{}
	for _, p := range out {
		sizes[p.at] += p.size
	}
	return sizes, next
}

// The scripts whose requests a test holds up.
var (
	ReadScript    = shardText + shardReadText
	RecoverScript = shardText + recoverText
)

package redis

import "slices"

// quota is how many of k shards belong to a member, and where in the ring of shards its
// part begins. names are the members, the oldest first. The quotas of all add up to k:
// once all members see the same names, every shard has exactly one member that may claim
// it, and nobody waits for a shard while another member has two more than it.
func quota(names []string, me string, k int) (n, from int) {
	at := slices.Index(names, me)
	if at < 0 || len(names) == 0 {
		return 0, 0
	}
	n = k / len(names)
	rest := k % len(names)
	from = at*n + min(at, rest)
	if at < rest {
		n++
	}
	return n, from
}

// pick chooses at most n of the free shards, beginning at from and going round, so that
// members that come at once do not all try the same ones.
func pick(free []bool, n, from int) []int {
	var out []int
	for i := range free {
		if s := (from + i) % len(free); free[s] && len(out) < n {
			out = append(out, s)
		}
	}
	return out
}

// portions shares room out over n sources, beginning at first and going round: each gets
// at least one, so with less room than sources some get none and their turn comes with
// the next call. next is where that begins. The portions never add up to more than room.
func portions(room, n, first int) (out []portionOf, next int) {
	if n == 0 {
		return nil, 0
	}
	asked := min(room, n)
	for i := range asked {
		size := room / asked
		if i < room%asked {
			size++
		}
		out = append(out, portionOf{at: (first + i) % n, size: size})
	}
	return out, (first + asked) % n
}

// portionOf is the part of one source.
type portionOf struct{ at, size int }

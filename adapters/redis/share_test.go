package redis_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/varal-go/varal/adapters/redis"
)

// Whatever the number of members, their parts are a division of the ring: every shard in
// one of them, and no part larger than another by more than one.
func TestQuotasDivideTheShards(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 20; k++ {
		for members := 1; members <= 25; members++ {
			var names []string
			for i := range members {
				names = append(names, fmt.Sprintf("m%02d", i))
			}
			least, most := k, 0
			part := make([]int, k)
			for _, me := range names {
				n, from := redis.Quota(names, me, k)
				least, most = min(least, n), max(most, n)
				for i := range n {
					part[from+i]++
				}
			}
			if most-least > 1 || slices.Min(part) != 1 || slices.Max(part) != 1 {
				t.Fatalf("%d shards, %d members: parts %v, quotas from %d to %d", k, members, part, least, most)
			}
		}
	}
	if n, _ := redis.Quota([]string{"a"}, "b", 8); n != 0 {
		t.Errorf("a member that is not in the list has a quota of %d", n)
	}
}

func TestPickGoesRoundFromItsOwnPart(t *testing.T) {
	t.Parallel()
	free := []bool{true, false, true, true, false, true}
	for _, c := range []struct {
		n, from int
		want    []int
	}{{2, 0, []int{0, 2}}, {2, 4, []int{5, 0}}, {9, 3, []int{3, 5, 0, 2}}, {0, 0, nil}} {
		if got := redis.Pick(free, c.n, c.from); !slices.Equal(got, c.want) {
			t.Errorf("%d from %d: %v, want %v", c.n, c.from, got, c.want)
		}
	}
}

// The portions add up to the room and no more, and with less room than sources every one
// has its turn.
func TestPortionsKeepToTheRoom(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 12; n++ {
		for room := 1; room <= 30; room++ {
			first := 0
			total := map[int]int{}
			for range n {
				sizes, next := redis.Portions(room, n, first)
				sum := 0
				for at, size := range sizes {
					sum += size
					total[at] += size
					if size < 1 {
						t.Fatalf("room %d, %d sources: a portion of %d", room, n, size)
					}
				}
				if sum != room {
					t.Fatalf("room %d, %d sources: portions of %d", room, n, sum)
				}
				first = next
			}
			if len(total) != n {
				t.Fatalf("room %d, %d sources: only %d had a turn in %d calls", room, n, len(total), n)
			}
		}
	}
}

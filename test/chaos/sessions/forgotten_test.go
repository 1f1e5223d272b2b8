//go:build unix

package sessions

import (
	"strconv"

	"github.com/varal-go/varal/test/lab/history"
)

// ended is a message that is terminal, where it lies in its log and who ended it.
type ended struct {
	proc      string
	partition string
	offset    int
	term      int // which assignment of the partition it was
}

// forgotten adds what core is known to forget: a commit state that an owner was given and
// has not read to its end when it has to let go. Its last commit moves the position and
// tells nothing of what lies further up than it has read, so that what the owner before had
// completed there is done again. For each such message the loss of its settle is written
// into the history, which explains a repetition, and excuses nothing else.
func forgotten(h *history.History) *history.History {
	over := map[string]ended{}
	read := map[string]int{} // how far the owner of a partition has read
	term := map[string]int{}
	var add []history.Event
	for i := range h.Events {
		e := &h.Events[i]
		at, err := strconv.Atoi(e.Position)
		switch {
		case e.Op == history.OpAssign:
			read[e.Partition] = -1
			term[e.Partition]++
		case err != nil:
		case e.Op == history.OpRecv:
			read[e.Partition] = max(read[e.Partition], at)
		case e.Op == history.OpEnd && (e.Outcome == history.OK || e.Class == history.Permanent):
			over[e.ID] = ended{e.Proc, e.Partition, at, term[e.Partition]}
		case e.Op == history.OpCommit:
			for id, x := range over {
				switch {
				case x.partition != e.Partition:
				case x.offset < at: // committed
					delete(over, id)
				case x.term != term[e.Partition] && x.offset > read[e.Partition]:
					delete(over, id)
					add = append(add, history.Event{
						Proc: x.proc, Gen: 1, T: e.T, Op: history.OpLost, ID: id, Group: group, Dest: e.Dest, Partition: e.Partition,
					})
				}
			}
		}
	}
	if len(add) == 0 {
		return h
	}
	all := history.New(append(h.Events, add...))
	all.Problems = h.Problems
	return all
}

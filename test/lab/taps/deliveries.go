package taps

import "github.com/varal-go/varal/core/driver"

// Receipt is a driver.Receipt without Ref, which need not be comparable.
type Receipt struct {
	Lane
	Seq, Aux int64
	ID       string
}

// Lane is one tenure of a partition.
type Lane struct {
	Partition string
	Epoch     uint64
}

// Delivery is a message that a consumer received.
type Delivery struct {
	ID      string
	Offset  int64 // -1 = no log
	Receipt Receipt
}

// Position is that of the delivery in its log; "" = no log.
func (d Delivery) Position() string { return Position(d.Offset) }

// Deliveries are those of one consumer. Receive and Settle each have one caller, as the
// contract says; a lock of the owner's is between those two.
type Deliveries struct {
	Held map[Receipt]Delivery
	Logs map[Lane][]Delivery // received and not committed, in order; nil = no log
}

// NewDeliveries are none yet. upTo says that a settlement is about all before it as well.
func NewDeliveries(upTo bool) Deliveries {
	d := Deliveries{Held: map[Receipt]Delivery{}}
	if upTo {
		d.Logs = map[Lane][]Delivery{}
	}
	return d
}

// UpTo reports whether a settlement is about all before it as well.
func (d *Deliveries) UpTo() bool { return d.Logs != nil }

// Add keeps what was received.
func (d *Deliveries) Add(m *driver.Received) Delivery {
	x := Delivery{ID: m.ID, Offset: m.Offset, Receipt: key(m.Receipt)}
	d.Held[x.Receipt] = x
	if d.UpTo() {
		d.Logs[x.Receipt.Lane] = append(d.Logs[x.Receipt.Lane], x)
	}
	return x
}

// Of is the delivery of a receipt. One of a receipt that nobody was given has a name that
// is no message's.
func (d *Deliveries) Of(r driver.Receipt) (x Delivery, known bool) {
	if x, known = d.Held[key(r)]; !known {
		x = Delivery{ID: "unknown receipt", Offset: -1, Receipt: key(r)}
	}
	return x, known
}

// Split divides the log of a lane at the next place to read: before it is what a commit of
// that place covers.
func (d *Deliveries) Split(l Lane, next int64) (covered, rest []Delivery) {
	log := d.Logs[l]
	n := 0
	for n < len(log) && log[n].Offset < next {
		n++
	}
	return log[:n:n], log[n:]
}

func key(r driver.Receipt) Receipt {
	return Receipt{Lane{r.Partition, r.Epoch}, r.Seq, r.Aux, r.ID}
}

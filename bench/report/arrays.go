package report

// Groups whose figures the report also has as arrays, for programs that check them.
const (
	LossGroup   = "loss"   // its points are faults, called so by their labels
	IncastGroup = "incast" // its points are numbers of senders
)

// Series of LossGroup beside vi-reliable-delivery.
const (
	LossTCP = "tcp-spin, cubic"
	LossBBR = "tcp-spin, bbr"
)

// ArrayRow is one element of an array: a point of via-xdp's row, and those of the kernel's rows
// in objects. Figures are medians over the turns; what was not measured is null.
type ArrayRow map[string]any

// array says what becomes of a group.
type array struct {
	group, ours string
	tcp         map[string]string // series, by their objects; tcp is there in any case
	key         string            // of the point's place
	figures     map[string]Metric
}

var (
	lossArray = array{
		group: LossGroup, ours: delivery, key: "fault", tcp: map[string]string{"tcp": LossTCP, "tcp_bbr": LossBBR},
		figures: map[string]Metric{"goodput_ratio": GoodputRatio, "pingpong_p99_us": P99, "spurious_ratio": SpuriousRatio},
	}
	incastArray = array{
		group: IncastGroup, ours: "vianet", key: "senders", tcp: map[string]string{"tcp": "tcp-net"},
		figures: map[string]Metric{
			"goodput_ratio": SendersRatio, "fairness": Fairness, "least_share": LeastShare,
			"resent_ratio": ResentRatio, "dropped_ratio": DroppedRatio, "unnamed_frames": Unnamed,
		},
	}
)

// of makes the array of a report, nil without the group. A labelled point at 0 is what the others
// are compared with.
func (a array) of(r *Report) []ArrayRow {
	g := r.Group(a.group)
	if g == nil || g.Row(a.ours) == nil {
		return nil
	}
	figures := func(p *Point) ArrayRow {
		row := ArrayRow{}
		for name, m := range a.figures {
			row[name] = number(p.median(m))
		}
		return row
	}
	rows := []ArrayRow{}
	for i := range g.Row(a.ours).Points {
		p := &g.Row(a.ours).Points[i]
		row := figures(p)
		switch {
		case p.Label == "":
			row[a.key] = int(p.X)
		case p.X == 0:
			continue
		default:
			row[a.key] = p.Label
		}
		for object, name := range a.tcp {
			s, q := g.Row(name), &Point{}
			if s != nil && s.like(p) != nil {
				q = s.like(p)
			}
			if s != nil || object == "tcp" {
				row[object] = figures(q)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

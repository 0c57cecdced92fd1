package report

// LossGroup is the group that Report.Loss is made of; its points are faults, called
// so by their labels.
const LossGroup = "loss"

// Series of LossGroup beside vi-reliable-delivery.
const (
	LossTCP = "tcp-spin, cubic"
	LossBBR = "tcp-spin, bbr"
)

// FaultFigures are what a transport does under a fault of the network: medians over
// the turns. What was not measured is null.
type FaultFigures struct {
	Goodput  number `json:"goodput_ratio"`   // of a stream, to the one without a fault on the same path
	P99      number `json:"pingpong_p99_us"` // of whole round trips
	Spurious number `json:"spurious_ratio"`  // frames sent again that had arrived, of all that were sent
}

// FaultRow is one fault, ours beside the kernel's.
type FaultRow struct {
	Fault string `json:"fault"`
	FaultFigures
	TCP FaultFigures  `json:"tcp"`               // cubic
	BBR *FaultFigures `json:"tcp_bbr,omitempty"` // where the kernel has it
}

// faultRows are the faults of LossGroup, without the point that has none.
func (r *Report) faultRows() []FaultRow {
	g := r.Group(LossGroup)
	if g == nil {
		return nil
	}
	ours := g.Row(delivery)
	if ours == nil {
		return nil
	}
	figures := func(series *Series, p *Point) FaultFigures {
		if series != nil {
			p = series.like(p)
		} else {
			p = nil
		}
		if p == nil {
			p = &Point{}
		}
		return FaultFigures{number(p.median(GoodputRatio)), number(p.median(P99)), number(p.median(SpuriousRatio))}
	}
	rows := []FaultRow{}
	for i := range ours.Points {
		p := &ours.Points[i]
		if p.X == 0 {
			continue // the base
		}
		row := FaultRow{Fault: p.Label, FaultFigures: figures(ours, p), TCP: figures(g.Row(LossTCP), p)}
		if bbr := g.Row(LossBBR); bbr != nil {
			f := figures(bbr, p)
			row.BBR = &f
		}
		rows = append(rows, row)
	}
	return rows
}

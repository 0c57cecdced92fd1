package report

// IncastGroup is the group that Report.Incast is made of; its points are numbers of senders.
const IncastGroup = "incast"

// IncastFigures are what a transport does with several senders into one receiver: medians
// over the turns. What was not measured is null.
type IncastFigures struct {
	Goodput  number `json:"goodput_ratio"`  // of all senders, to that of one alone on the same path
	Fairness number `json:"fairness"`       // Jain's index of the senders' shares
	Least    number `json:"least_share"`    // the least share by the greatest
	Resent   number `json:"resent_ratio"`   // frames sent again, of all that were sent
	Dropped  number `json:"dropped_ratio"`  // frames counted as dropped, of all that were sent
	Unnamed  number `json:"unnamed_frames"` // that are missing, and nobody has counted; null for TCP
}

// IncastRow is a number of senders, ours beside the kernel's.
type IncastRow struct {
	Senders int `json:"senders"`
	IncastFigures
	TCP IncastFigures `json:"tcp"`
}

// incastRows are the numbers of senders of IncastGroup.
func (r *Report) incastRows() []IncastRow {
	g := r.Group(IncastGroup)
	if g == nil {
		return nil
	}
	ours, theirs := g.Row(waiting), g.Row(tcpBlock)
	if ours == nil {
		return nil
	}
	figures := func(p *Point) IncastFigures {
		if p == nil {
			p = &Point{}
		}
		return IncastFigures{
			Goodput: number(p.median(SendersRatio)), Fairness: number(p.median(Fairness)), Least: number(p.median(LeastShare)),
			Resent: number(p.median(ResentRatio)), Dropped: number(p.median(DroppedRatio)), Unnamed: number(p.median(Unnamed)),
		}
	}
	rows := []IncastRow{}
	for i := range ours.Points {
		p := &ours.Points[i]
		var tcp *Point
		if theirs != nil {
			tcp = theirs.At(p.X)
		}
		rows = append(rows, IncastRow{Senders: int(p.X), IncastFigures: figures(p), TCP: figures(tcp)})
	}
	return rows
}

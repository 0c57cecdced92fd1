package fabric

import "viaxdp/internal/lab/fail"

// Dumbbell has pairs of hosts whose traffic passes one bottleneck.
//
//	left[0] --+            bottleneck            +-- right[0]
//	left[1] --+- switch ---------------> switch -+-- right[1]
//	   ...    |         <---------------         |     ...
type Dumbbell struct {
	*Sim
	Left, Right []*Host
	Bottleneck  *Port // from left to right
	Back        *Port
}

// NewDumbbell makes n pairs of hosts, whose links have ten times the bottleneck's rate, but at least 10 Gbit/s, and no
// delay. The delay of the bottleneck is that of both directions.
func NewDumbbell(seed uint64, n int, c HostConfig, bottleneck Link) (_ *Dumbbell, err error) {
	defer fail.Catch(&err)
	d := &Dumbbell{Sim: NewSim(seed)}
	left, right := newSwitch(0), newSwitch(0)
	back := Link{Rate: bottleneck.Rate, Delay: bottleneck.Delay}
	d.Bottleneck, d.Back = d.port(bottleneck, left.buffer, right), d.port(back, right.buffer, left)
	edge := Link{Rate: max(10*bottleneck.Rate, 10e9), Delay: Microsecond}
	for i := range 2 * n {
		at, across, way, hosts := left, right, d.Back, &d.Left // way leads from across to at
		if i%2 == 1 {
			at, across, way, hosts = right, left, d.Bottleneck, &d.Right
		}
		h := d.newHost(c, edge, at)
		*hosts = append(*hosts, h)
		at.routes[h] = []*Port{d.port(edge, at.buffer, h)}
		across.routes[h] = []*Port{way}
	}
	return d, nil
}

// LeafSpine has leaves with hosts, each leaf connected with each spine.
type LeafSpine struct {
	*Sim
	Hosts []*Host
	Down  []*Port   // from the leaf to each host
	Up    [][]*Port // from each leaf to each spine
	Back  [][]*Port // from each spine to each leaf
	shape Shape
}

// Shape is the size of a LeafSpine.
type Shape struct {
	Leaves, PerLeaf, Spines int
	Host, Trunk             Link // links of hosts, and between leaves and spines
	Buffer                  int  // bytes of each switch, shared by its ports; 0: the links' limits
}

// NewLeafSpine makes the network of a shape.
func NewLeafSpine(seed uint64, c HostConfig, z Shape) (_ *LeafSpine, err error) {
	defer fail.Catch(&err)
	l := &LeafSpine{Sim: NewSim(seed), shape: z}
	spines := make([]*Switch, z.Spines)
	l.Back = make([][]*Port, z.Spines)
	for i := range spines {
		spines[i] = newSwitch(z.Buffer)
	}
	leaves := make([]*Switch, z.Leaves)
	l.Up = make([][]*Port, z.Leaves)
	edge := Link{Rate: z.Host.Rate, Delay: z.Host.Delay}
	for i := range leaves {
		leaf := newSwitch(z.Buffer)
		leaves[i] = leaf
		for k, s := range spines {
			l.Up[i] = append(l.Up[i], l.port(z.Trunk, leaf.buffer, s))
			l.Back[k] = append(l.Back[k], l.port(z.Trunk, s.buffer, leaf))
		}
		for range z.PerLeaf {
			h := l.newHost(c, edge, leaf)
			l.Hosts = append(l.Hosts, h)
			port := l.port(z.Host, leaf.buffer, h)
			l.Down = append(l.Down, port)
			leaf.routes[h] = []*Port{port}
			for k, s := range spines {
				s.routes[h] = []*Port{l.Back[k][i]}
			}
		}
	}
	for i, leaf := range leaves {
		for n, h := range l.Hosts {
			if n/z.PerLeaf != i {
				leaf.routes[h] = l.Up[i]
			}
		}
	}
	return l, nil
}

// FailSpine takes the links of a spine down, or up again. The leaves use the others at once.
func (l *LeafSpine) FailSpine(n int, down bool) {
	for leaf := range l.Up {
		l.Up[leaf][n].down, l.Back[n][leaf].down = down, down
	}
}

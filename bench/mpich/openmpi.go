package mpich

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"viaxdp/internal/lab/openmpi"
	"viaxdp/internal/lab/testbed"
)

// BuildOpenMPI is Build for Open MPI.
func BuildOpenMPI(ctx context.Context, dir string) (string, error) {
	from, path := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe-openmpi")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		return "", err
	}
	return path, openmpi.Build(ctx, from, path)
}

// openMPI runs the program on a star, each rank on a host of its own, bound to CPUs in turn.
func (r Run) openMPI(ctx context.Context, program []string, out *bytes.Buffer) error {
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return err
	}
	star, err := testbed.NewStar(r.Ranks, r.MTU)
	if err != nil {
		return err
	}
	defer star.Close()
	cfg := openmpi.Config{Ranks: 1}
	for i := range r.Ranks {
		cfg.CPUs = append(cfg.CPUs, cpus[i%len(cpus)])
	}
	hosts, err := openmpi.Start(star, r.Ranks, cfg)
	if err != nil {
		return err
	}
	defer hosts.Close()
	said, err := hosts.Run(ctx, r.OpenMPI, nil, program...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace([]byte(said)))
	}
	out.WriteString(said)
	return nil
}

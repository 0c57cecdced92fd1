package main

import (
	"encoding/json"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"viaxdp/mvich"
	"viaxdp/mvich/mpiapps"
)

func newMpiapp(env environment) *cobra.Command {
	var device string
	var inJSON bool
	var o mpiapps.Options
	cmd := &cobra.Command{
		Use:   "mpiapp [flags] " + strings.Join(mpiapps.Names(), "|"),
		Short: "Be a rank of an application: a stencil, or conjugate gradients",
		Long: "To be started by via-xdp mpirun, or Hydra's mpiexec on hosts with an interface each.\n" +
			"The ranks cut a square into blocks and compute it together; rank 0 then computes it\n" +
			"alone, compares the results, and fails where they differ. It prints how long the\n" +
			"ranks took, and the share of it that was communication.",
		Example: "  via-xdp mpirun -np 4 via-xdp mpiapp stencil\n" +
			"  mpiexec.hydra -hosts a,b via-xdp mpiapp -i eth1 cg",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: mpiapps.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			if f.Changed("size") {
				if err := within("--size", o.Size, 1, mpiapps.MaxSize); err != nil {
					return err
				}
			}
			if f.Changed("steps") {
				if err := within("--steps", o.Steps, 1, math.MaxInt); err != nil {
					return err
				}
			}
			return rank(cmd.Context(), device, mvich.Auto, func(c *mvich.Comm) error {
				r, err := mpiapps.Run(c, args[0], o)
				switch {
				case err != nil || r == nil:
					return err
				case inJSON:
					return json.NewEncoder(env.stdout).Encode(r)
				}
				return r.Print(env.stdout)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&device, "interface", "i", os.Getenv(mvich.DeviceVariable), "interface of this rank")
	f.BoolVar(&inJSON, "json", false, "print the result as JSON")
	f.IntVar(&o.Size, "size", 0, "`points` of a side of the square (default: 1024 of the stencil, 512 of cg)")
	f.IntVar(&o.Steps, "steps", 0, "steps of the stencil, most steps of cg (default: 400, 5000)")
	return cmd
}

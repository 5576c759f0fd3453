package main

import (
	"fmt"

	"treadle/internal/auth"
)

type keyCmd struct {
	New keyNewCmd `cmd:"" help:"Print a new key for a tenant, once, and the lines to add to the config file."`
}

type keyNewCmd struct {
	Tenant string `arg:"" help:"Tenant id: 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit."`
}

// Run prints a key and its hash. Nothing is stored: the operator puts the hash into the config file.
func (c keyNewCmd) Run(std streams) error {
	key, hash, err := auth.NewKey(c.Tenant)
	if err != nil {
		return usageError{err}
	}
	_, err = fmt.Fprintf(std.out, `The new key of tenant %[1]s. It is shown once and stored nowhere:

%[2]s

Clients send it as "Authorization: Bearer KEY". Add these lines to the config file (to a tenant that is already there, only
the hash), then start treadle serve --config FILE, or send SIGHUP to the one that runs:

tenants:
  - id: %[1]s
    keys:
      - "%[3]s"
`, c.Tenant, key, hash)
	return err
}

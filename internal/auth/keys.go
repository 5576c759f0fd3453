package auth

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
)

// Keys knows the tenants and the hashes of their keys. The zero value knows nobody.
// It is filled by one goroutine and then read by any number.
type Keys struct {
	tenants map[string]bool
	// owners finds the tenant by digest: the work is the same for a right key, a wrong one and a nearly right one.
	owners map[[sha256.Size]byte]string
}

// AddTenant makes a tenant known. A malformed or repeated id is an error.
func (k *Keys) AddTenant(id string) error {
	if err := checkTenant(id); err != nil {
		return err
	}
	if k.tenants[id] {
		return fmt.Errorf("tenant %q is there twice: put all its keys under one entry", id)
	}
	if k.tenants == nil {
		k.tenants = map[string]bool{}
		k.owners = map[[sha256.Size]byte]string{}
	}
	k.tenants[id] = true
	return nil
}

// AddKey gives a known tenant one more key by its hash; several keys are valid at once, so that they can be rotated.
// A malformed hash, and one that is already there for whatever tenant, is an error.
func (k *Keys) AddKey(tenant, hash string) error {
	if !k.tenants[tenant] {
		return fmt.Errorf("tenant %q is unknown", tenant)
	}
	digest, err := parseHash(hash)
	if err != nil {
		return err
	}
	if owner, taken := k.owners[digest]; taken {
		return fmt.Errorf("this key is there twice: tenant %q has it already", owner)
	}
	k.owners[digest] = tenant
	return nil
}

// Tenant returns the tenant that a presented key belongs to.
func (k *Keys) Tenant(key string) (tenant string, ok bool) {
	tenant, ok = k.owners[sha256.Sum256([]byte(key))]
	return tenant, ok
}

// Tenants returns how many tenants are known.
func (k *Keys) Tenants() int { return len(k.tenants) }

// Bearer returns the key that a request carries in its Authorization header, or "" if there is none, or more than one.
func Bearer(header http.Header) string {
	values := header.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

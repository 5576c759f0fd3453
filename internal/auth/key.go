// Package auth knows API keys: it makes them, and tells which tenant a presented one belongs to.
//
// A key is a bearer secret of 256 random bits. Only its SHA-256 is kept anywhere, which needs no salt and no slow hash
// because the secret cannot be guessed.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
)

// hashPrefix stands before the digest in a configuration, so that a later kind of hash can stand beside it.
const hashPrefix = "sha256:"

var tenantPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// NewKey returns a fresh key for the tenant and the hash that a configuration keeps of it.
// The tenant's name in the key is for people who find one; it plays no part in checking it.
func NewKey(tenant string) (key, hash string, err error) {
	if err := checkTenant(tenant); err != nil {
		return "", "", err
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails, says its documentation
	key = "tdl_" + tenant + "_" + base64.RawURLEncoding.EncodeToString(secret)
	digest := sha256.Sum256([]byte(key))
	return key, hashPrefix + hex.EncodeToString(digest[:]), nil
}

func checkTenant(id string) error {
	if !tenantPattern.MatchString(id) {
		return fmt.Errorf("tenant id %q: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit", id)
	}
	return nil
}

// parseHash never repeats its input: somebody may have pasted the key itself.
func parseHash(hash string) ([sha256.Size]byte, error) {
	var digest [sha256.Size]byte
	const want = `a key is kept as "sha256:" and 64 hexadecimal digits, as "treadle key new" prints it`
	if len(hash) != len(hashPrefix)+2*sha256.Size || hash[:len(hashPrefix)] != hashPrefix {
		return digest, fmt.Errorf("%s", want)
	}
	if _, err := hex.Decode(digest[:], []byte(hash[len(hashPrefix):])); err != nil {
		return digest, fmt.Errorf("%s", want)
	}
	return digest, nil
}

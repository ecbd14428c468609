package suite

import "slices"

// The capabilities that a target can declare. A declared capability is held to.
const (
	CapabilityClock       = "clock"       // POST /testing/clock moves the target's time forward
	CapabilityFaults      = "faults"      // PUT /testing/faults makes storage fail on demand
	CapabilityMaintenance = "maintenance" // pushes can be diverted to the spool
	CapabilityAuth        = "auth"        // tokens are required; the tester supplies one of each role
	CapabilitySigning     = "signing"     // the tester supplies the secret that signs tokens
	CapabilityEncryption  = "encryption"  // payloads are encrypted at rest
	CapabilityRetention   = "retention"   // old segments are deleted
	CapabilityWebhooks    = "webhooks"    // the target can reach the suite, and may deliver to it
	CapabilityRestart     = "restart"     // the tester supplies a command that restarts the target
)

// Capabilities lists every capability this version of the suite knows.
func Capabilities() []string {
	return []string{
		CapabilityClock, CapabilityFaults, CapabilityMaintenance, CapabilityAuth, CapabilitySigning,
		CapabilityEncryption, CapabilityRetention, CapabilityWebhooks, CapabilityRestart,
	}
}

func unknownCapabilities(names []string) []string {
	known := Capabilities()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.Contains(known, name)
	})
}

package reference

// Dead letters of publishing, and signing keys.
const (
	DeadStatusOmitted       Mutation = "dead-status-omitted"        // a dead letter does not tell the status of the last answer
	DeadAnswerOmitted       Mutation = "dead-answer-omitted"        // a dead letter does not hold the last answer
	SilenceIs502            Mutation = "silence-is502"              // no answer is shown as one of status 502
	DeadNotRedacted         Mutation = "dead-not-redacted"          // a dead letter shows what is to be hidden
	DeadStatusFilterIgnored Mutation = "dead-status-filter-ignored" // dead letters are not filtered by status
	DeadUnknownIgnored      Mutation = "dead-unknown-ignored"       // selectors of dead letters that are not known are ignored
	DeadOrderIgnored        Mutation = "dead-order-ignored"         // dead letters come latest first
	DeadCursorAtEnd         Mutation = "dead-cursor-at-end"         // the last page of dead letters has a cursor
	DeadReadFirst           Mutation = "dead-read-first"            // the oldest dead letter is read, whatever the id
	DeadDeletionIgnored     Mutation = "dead-deletion-ignored"      // a deleted dead letter stays
	DeadDeletionShort       Mutation = "dead-deletion-short"        // of several selected dead letters one is deleted
	RetryKeepsDead          Mutation = "retry-keeps-dead"           // a retried dead letter stays
	RetryOfOldMessage       Mutation = "retry-of-old-message"       // a retry is an attempt of the message that failed
	RetryOverridesIgnored   Mutation = "retry-overrides-ignored"    // headers of a retry have no effect
	RetryForgetsHeader      Mutation = "retry-forgets-header"       // a retry is delivered without the headers of the message
	RetryWaitsAgain         Mutation = "retry-waits-again"          // the delay of the message is that of its retry
	RetryForgetsSettings    Mutation = "retry-forgets-settings"     // a retry has default settings
	RetriesFirstOnly        Mutation = "retries-first-only"         // of several selected dead letters one is retried
	RetriesUnanswered       Mutation = "retries-unanswered"         // retries of several dead letters do not tell the new ids
	KeysV1Differ            Mutation = "keys-v1-differ"             // version 1 answers other keys
	RotationSignsWithOld    Mutation = "rotation-signs-with-old"    // deliveries stay signed with the key before the rotation
	RotationOfBoth          Mutation = "rotation-of-both"           // a rotation replaces both keys
	RotationKeepsNext       Mutation = "rotation-keeps-next"        // after a rotation both keys are the same
	RotationAliasIdle       Mutation = "rotation-alias-idle"        // the other name of the rotation rotates nothing
	RotationV1Idle          Mutation = "rotation-v1-idle"           // the rotation of version 1 rotates nothing
	SignedWithNext          Mutation = "signed-with-next"           // deliveries are signed with the next key
	QuotaUnlimitedText      Mutation = "quota-unlimited-text"       // a bound that there is not is a text
)

var dlqMutations = []Mutation{
	DeadStatusOmitted, DeadAnswerOmitted, SilenceIs502, DeadNotRedacted, DeadStatusFilterIgnored, DeadUnknownIgnored, DeadOrderIgnored, DeadCursorAtEnd, DeadReadFirst,
	DeadDeletionIgnored, DeadDeletionShort, RetryKeepsDead, RetryOfOldMessage, RetryOverridesIgnored, RetryForgetsHeader, RetryWaitsAgain, RetryForgetsSettings,
	RetriesFirstOnly, RetriesUnanswered, KeysV1Differ, RotationSignsWithOld, RotationOfBoth, RotationKeepsNext, RotationAliasIdle, RotationV1Idle,
	SignedWithNext, QuotaUnlimitedText,
}

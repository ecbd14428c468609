package reference

// Defects of streams.
const (
	StreamFieldsOptional        Mutation = "stream-fields-optional"         // required fields may be missing
	StreamOpsUnchecked          Mutation = "stream-ops-unchecked"           // state operations are not checked
	StreamAlwaysFresh           Mutation = "stream-always-fresh"            // every registration is fresh
	StreamChangeAccepted        Mutation = "stream-change-accepted"         // another config_hash is accepted
	StreamChangeApplied         Mutation = "stream-change-applied"          // a refused config_hash is kept
	StreamResetKeepsState       Mutation = "stream-reset-keeps-state"       // a reset drops nothing
	StreamResetKeepsID          Mutation = "stream-reset-keeps-id"          // a reset does not change the query_id
	StreamKeysIgnored           Mutation = "stream-keys-ignored"            // keys is ignored
	StreamPrefixIgnored         Mutation = "stream-prefix-ignored"          // key_prefix is ignored
	StreamStateUnordered        Mutation = "stream-state-unordered"         // state comes in reverse order
	StreamStateShared           Mutation = "stream-state-shared"            // queries see the state of each other
	StreamStateAcrossPartitions Mutation = "stream-state-across-partitions" // all partitions share their state
	StreamRewritesState         Mutation = "stream-rewrites-state"          // values are decoded and encoded again
	StreamDeleteIgnored         Mutation = "stream-delete-ignored"          // nothing is deleted from state
	StreamFirstValueStays       Mutation = "stream-first-value-stays"       // values are not replaced
	StreamDuplicateFails        Mutation = "stream-duplicate-fails"         // a pushed duplicate fails the cycle
	StreamAckIgnored            Mutation = "stream-ack-ignored"             // the ack is not carried out
	StreamCountIsOne            Mutation = "stream-count-is-one"            // count is not echoed
	StreamNeverReleases         Mutation = "stream-never-releases"          // a partial ack keeps the lease
	StreamAlwaysReleases        Mutation = "stream-always-releases"         // release_lease false is ignored
	StreamStateFirst            Mutation = "stream-state-first"             // state stays when the ack fails
)

var streamMutations = []Mutation{
	StreamFieldsOptional, StreamOpsUnchecked, StreamAlwaysFresh, StreamChangeAccepted, StreamChangeApplied,
	StreamResetKeepsState, StreamResetKeepsID, StreamKeysIgnored, StreamPrefixIgnored, StreamStateUnordered,
	StreamStateShared, StreamStateAcrossPartitions, StreamRewritesState, StreamDeleteIgnored, StreamFirstValueStays,
	StreamDuplicateFails, StreamAckIgnored, StreamCountIsOne, StreamNeverReleases, StreamAlwaysReleases, StreamStateFirst,
}

package reference

// Delivery queues and flow control.
const (
	EnqueuedQueueWide           Mutation = "enqueued-queue-wide"            // the first message creates its delivery queue with parallelism 2
	DeliveryQueuesIgnored       Mutation = "delivery-queues-ignored"        // messages of a delivery queue wait for nothing
	LastEnqueuedFirst           Mutation = "last-enqueued-first"            // a delivery queue starts the latest message first
	RetryHoldsNoPlace           Mutation = "retry-holds-no-place"           // a message that waits for its retry lets the next one start
	CallbacksHoldNoPlace        Mutation = "callbacks-hold-no-place"        // the next message does not wait for callbacks
	DelayHoldsUp                Mutation = "delay-holds-up"                 // a message that is delayed holds up those behind it
	CancelKeepsPlace            Mutation = "cancel-keeps-place"             // a message that was cancelled after its first attempt holds its place
	QueueHeaderIgnored          Mutation = "queue-header-ignored"           // Upstash-Queue-Name has no effect
	OnePlaceMore                Mutation = "one-place-more"                 // a parallelism above 1 lets one message more be under way
	EnqueuedQueuesUnlisted      Mutation = "enqueued-queues-unlisted"       // delivery queues that a message created are not listed
	UpsertResetsQueue           Mutation = "upsert-resets-queue"            // what an upsert does not give is reset
	ParallelismFixed            Mutation = "parallelism-fixed"              // a delivery queue keeps the parallelism that it was created with
	DeliveryQueueNamesUnchecked Mutation = "delivery-queue-names-unchecked" // names of delivery queues may hold anything
	NoPlacesAccepted            Mutation = "no-places-accepted"             // a parallelism of 0 is accepted
	UnknownQueueMade            Mutation = "unknown-queue-made"             // an unknown delivery queue is created where it is asked for
	LagWithoutStarted           Mutation = "lag-without-started"            // the lag does not count messages under way
	UnpausedOmitted             Mutation = "unpaused-omitted"               // paused is left out when it is false
	DeletedQueueStays           Mutation = "deleted-queue-stays"            // deleting a delivery queue cancels its messages only
	DeletedQueueDelivers        Mutation = "deleted-queue-delivers"         // what waits in a deleted delivery queue is delivered
	QueuePauseIgnored           Mutation = "queue-pause-ignored"            // a paused delivery queue starts messages
	QueuePauseStopsStarted      Mutation = "queue-pause-stops-started"      // a paused delivery queue makes no retries
	QueueResumeIgnored          Mutation = "queue-resume-ignored"           // resuming a delivery queue has no effect

	FlowSearchCase         Mutation = "flow-search-case"         // keys are searched for in the case that is given
	FlowSearchPrefix       Mutation = "flow-search-prefix"       // keys are searched for by how they begin
	FlowKnownLate          Mutation = "flow-known-late"          // a key exists when its first attempt has begun
	UnknownFlowEmpty       Mutation = "unknown-flow-empty"       // an unknown key is read as one without bounds
	FlowParallelismIgnored Mutation = "flow-parallelism-ignored" // the parallelism of a key has no effect
	FlowRetryHoldsPlace    Mutation = "flow-retry-holds-place"   // a message that waits for its retry counts as under way
	PeriodOfRateOnly       Mutation = "period-of-rate-only"      // a message shows its period only with a rate
	FlowRateIgnored        Mutation = "flow-rate-ignored"        // the rate of a key has no effect
	FlowRetriesUncounted   Mutation = "flow-retries-uncounted"   // the rate of a key does not bound retries
	FlowPeriodEndless      Mutation = "flow-period-endless"      // the period of a key does not end
	FlowFirstValues        Mutation = "flow-first-values"        // the values of the first message are those of the key
	FlowValuesMerged       Mutation = "flow-values-merged"       // what the latest message does not set stays as it was
	FlowCallbacksBounded   Mutation = "flow-callbacks-bounded"   // callbacks are bounded by the key of their message
	FlowUnchecked          Mutation = "flow-unchecked"           // flow control values may be anything
	FlowPauseIgnored       Mutation = "flow-pause-ignored"       // a paused key lets attempts begin
	FlowPauseHidden        Mutation = "flow-pause-hidden"        // a paused key does not show it
	FlowResumeIgnored      Mutation = "flow-resume-ignored"      // resuming a key has no effect
	PinOverwritten         Mutation = "pin-overwritten"          // messages change pinned values
	PinPinsAll             Mutation = "pin-pins-all"             // pinning one value pins all
	PinUnchecked           Mutation = "pin-unchecked"            // pinned values may be anything
	UnpinIgnored           Mutation = "unpin-ignored"            // unpinning has no effect
	UnpinUnpinsAll         Mutation = "unpin-unpins-all"         // unpinning one value unpins all
	ResetRateIgnored       Mutation = "reset-rate-ignored"       // resetting the rate has no effect
	ResetKeepsPeriod       Mutation = "reset-keeps-period"       // resetting the rate does not begin a new period
	NothingInHand          Mutation = "nothing-in-hand"          // the global parallelism counts nothing
)

var gateMutations = []Mutation{
	EnqueuedQueueWide, DeliveryQueuesIgnored, LastEnqueuedFirst, RetryHoldsNoPlace, CallbacksHoldNoPlace, DelayHoldsUp, CancelKeepsPlace, QueueHeaderIgnored, OnePlaceMore,
	EnqueuedQueuesUnlisted, UpsertResetsQueue, ParallelismFixed, DeliveryQueueNamesUnchecked, NoPlacesAccepted, UnknownQueueMade,
	LagWithoutStarted, UnpausedOmitted, DeletedQueueStays, DeletedQueueDelivers, QueuePauseIgnored, QueuePauseStopsStarted,
	QueueResumeIgnored,
	FlowSearchCase, FlowSearchPrefix, FlowKnownLate, UnknownFlowEmpty, FlowParallelismIgnored, FlowRetryHoldsPlace, PeriodOfRateOnly,
	FlowRateIgnored, FlowRetriesUncounted,
	FlowPeriodEndless, FlowFirstValues, FlowValuesMerged, FlowCallbacksBounded, FlowUnchecked, FlowPauseIgnored, FlowPauseHidden,
	FlowResumeIgnored, PinOverwritten, PinPinsAll, PinUnchecked, UnpinIgnored, UnpinUnpinsAll, ResetRateIgnored,
	ResetKeepsPeriod, NothingInHand,
}

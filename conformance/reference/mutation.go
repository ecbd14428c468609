package reference

import "slices"

// Mutation is the name of one defect of the broker.
type Mutation string

// The mutations, by the part of the contract that they break.
const (

	// HTTP conventions.

	PlainNotFound      Mutation = "plain-not-found"      // an unknown route is answered with text
	NestedErrors       Mutation = "nested-errors"        // error is an object
	UnquotedErrors     Mutation = "unquoted-errors"      // error texts are not escaped
	VagueErrors        Mutation = "vague-errors"         // error texts do not say where
	SmallerBodyLimit   Mutation = "smaller-body-limit"   // a body of exactly the limit is refused
	NoBodyLimit        Mutation = "no-body-limit"        // bodies over the limit are accepted
	LateBodyLimit      Mutation = "late-body-limit"      // a body over the limit is read before it is refused
	RequireContentType Mutation = "require-content-type" // bodies that are not declared as JSON are refused
	ReplaceInvalidUTF8 Mutation = "replace-invalid-utf8" // broken bytes become U+FFFD
	FoldKeys           Mutation = "fold-keys"            // keys match whatever the case of their first letter
	RejectUnknownKeys  Mutation = "reject-unknown-keys"  // unknown keys of items are refused
	FirstKeyWins       Mutation = "first-key-wins"       // of duplicate keys the first counts
	ShallowBodies      Mutation = "shallow-bodies"       // bodies nested deeper than 1000 levels are refused
	DeepBodies         Mutation = "deep-bodies"          // nesting is not bounded
	PathEscapesKept    Mutation = "path-escapes-kept"    // path segments are not unescaped
	ForeignAllowed     Mutation = "foreign-allowed"      // requests of other origins are carried out
	OriginsRefused     Mutation = "origins-refused"      // every request of a browser is refused
	NeverRoutesExist   Mutation = "never-routes-exist"   // routes that never existed are answered 200
	MethodNotAllowed   Mutation = "method-not-allowed"   // a known path with another method is answered 405

	// Push: the body.

	PartialBadPush              Mutation = "partial-bad-push"               // the items before a bad one are stored
	ItemsOptional               Mutation = "items-optional"                 // a body without items is an empty push
	SingleItem                  Mutation = "single-item"                    // items may be one item
	RejectEmptyItems            Mutation = "reject-empty-items"             // an empty items array is refused
	SmallerItemLimit            Mutation = "smaller-item-limit"             // one item less than the limit is the most
	LargerItemLimit             Mutation = "larger-item-limit"              // one item more than the limit is accepted
	TraceIDChecked              Mutation = "trace-id-checked"               // a traceId that is not a string is refused
	AcceptDataAlias             Mutation = "accept-data-alias"              // data stands in for payload
	PayloadOptional             Mutation = "payload-optional"               // a missing payload is null
	RejectNullPayload           Mutation = "reject-null-payload"            // a null payload counts as missing
	QueueOptional               Mutation = "queue-optional"                 // a missing queue has a default
	QueueCoerced                Mutation = "queue-coerced"                  // a queue that is not a string is made one
	QueueEmptyAllowed           Mutation = "queue-empty-allowed"            // an empty queue has a default
	QueueControlAllowed         Mutation = "queue-control-allowed"          // control characters in queue names are accepted
	NullPartitionRefused        Mutation = "null-partition-refused"         // a null partition is refused
	OtherDefaultPartition       Mutation = "other-default-partition"        // the default partition is not named Default
	PartitionCoerced            Mutation = "partition-coerced"              // a partition that is not a string is made one
	PartitionControlAllowed     Mutation = "partition-control-allowed"      // control characters in partition names are accepted
	PartitionEmptyRefused       Mutation = "partition-empty-refused"        // an empty partition is refused
	NullTransactionIDRefused    Mutation = "null-transaction-id-refused"    // a null transactionId is refused
	TransactionIDCoerced        Mutation = "transaction-id-coerced"         // a transactionId that is not a string is made one
	TransactionIDControlAllowed Mutation = "transaction-id-control-allowed" // control characters in transaction ids are accepted
	TransactionIDEmptyKept      Mutation = "transaction-id-empty-kept"      // an empty transactionId is a transaction id
	CountCharacters             Mutation = "count-characters"               // lengths of names count characters
	ShortNames                  Mutation = "short-names"                    // the longest names are refused
	TruncateNames               Mutation = "truncate-names"                 // names that are too long are cut
	TrimNames                   Mutation = "trim-names"                     // white space around names is dropped
	FoldTransactionIDs          Mutation = "fold-transaction-ids"           // the case of transaction ids is folded
	EscapesKept                 Mutation = "escapes-kept"                   // JSON escapes in names are not decoded
	ReplaceSurrogates           Mutation = "replace-surrogates"             // lone surrogates in names become U+FFFD

	// Push: storing and answering.

	PushAnswers200         Mutation = "push-answers200"           // a push is answered 200
	WrapResults            Mutation = "wrap-results"              // the results are wrapped in an object
	ReverseResults         Mutation = "reorder-results"           // the results come in reverse order
	ReverseGroups          Mutation = "reverse-groups"            // items are stored in reverse order
	LateCommit             Mutation = "late-commit"               // a push is answered before it is stored
	NoWakeOnPush           Mutation = "no-wake-on-push"           // a push wakes nobody
	FirstQueueOnly         Mutation = "first-queue-only"          // items after the first go to another queue
	SinglePartition        Mutation = "single-partition"          // all items go to the default partition
	NotVersion7            Mutation = "not-version7"              // message ids are UUIDv4
	QueueNameOfFirst       Mutation = "queue-name-of-first"       // results name the first queue of the broker
	IndexFromOne           Mutation = "index-from-one"            // indexes start at 1
	LeakPartition          Mutation = "leak-partition-field"      // results tell the partition
	CompactPayloads        Mutation = "compact-payloads"          // white space in payloads is dropped
	RewritePayloads        Mutation = "rewrite-payloads"          // payloads are decoded and encoded again
	NewestFirst            Mutation = "newest-first"              // each message is put before the last one
	OtherMessageID         Mutation = "other-message-id"          // the answered id is not the stored one
	TransactionIDNotEchoed Mutation = "transaction-id-not-echoed" // transaction_id is always the message id
	BufferedStatus         Mutation = "buffered-status"           // stored messages are said to be buffered
	TraceIDKept            Mutation = "trace-id-kept"             // traceId of an item is popped
	ProducerSubKept        Mutation = "producer-sub-kept"         // producerSub of an item is popped
	TraceParentDropped     Mutation = "traceparent-dropped"       // messages are popped without the traceparent of their push
	TraceParentRefused     Mutation = "traceparent-refused"       // a push with a malformed traceparent is refused
	TraceParentUnchecked   Mutation = "traceparent-unchecked"     // a malformed traceparent is popped
	NamespaceNotDerived    Mutation = "namespace-not-derived"     // dotted names give no namespace and task
	WrongImplicitLease     Mutation = "wrong-default-lease"       // a queue created by a push or a pop leases for 300 s

	// Push: deduplication.

	NoDedup               Mutation = "drop-dedup"              // nothing is a duplicate
	DedupOffByDefault     Mutation = "dedup-off-by-default"    // queues that nobody configured do not deduplicate
	RacyDedup             Mutation = "racy-dedup"              // probe and insert are not atomic
	WindowIgnored         Mutation = "window-ignored"          // the window never ends
	WindowTenfold         Mutation = "window-tenfold"          // the window is ten times as long
	WindowHalved          Mutation = "window-halved"           // the window is half as long
	WindowSlides          Mutation = "window-slides"           // a duplicate prolongs the window
	WindowZeroIsDefault   Mutation = "window-zero-is-default"  // window 0 is the default window
	DedupAcrossPartitions Mutation = "dedup-across-partitions" // a transaction id is unique in its queue
	DedupAcrossQueues     Mutation = "dedup-across-queues"     // a transaction id is unique in partitions of one name
	DedupForgetsConsumed  Mutation = "dedup-forgets-consumed"  // consumed messages are forgotten
	NoDedupInRequest      Mutation = "no-dedup-in-request"     // items of one call are not compared
	FollowerNewID         Mutation = "follower-new-id"         // a second duplicate of one call carries a new id
	DuplicateNewID        Mutation = "duplicate-new-id"        // a duplicate carries a new id
	DuplicateZeroID       Mutation = "duplicate-zero-id"       // a duplicate carries the zero id
	DuplicateWritten      Mutation = "duplicate-written"       // a duplicate is stored
	DuplicateOverwrites   Mutation = "duplicate-overwrites"    // a duplicate replaces the payload of the original
	DuplicateSaysQueued   Mutation = "duplicate-says-queued"   // a duplicate is said to be queued
	WholeCallDuplicate    Mutation = "whole-call-duplicate"    // after a duplicate, all items of the call are

	// Pop: request and answer.

	PartitionRouteIgnored     Mutation = "partition-route-ignored"     // a pop of one partition pops the queue
	UnknownPartition404       Mutation = "unknown-partition404"        // a pop of an unknown partition is answered 404
	ScopeOptional             Mutation = "scope-optional"              // a discovery pop needs no scope
	ScopeErrorFlat            Mutation = "scope-error-flat"            // the error of a discovery pop without scope is flat
	ScopePrefix               Mutation = "scope-prefix"                // namespaces match by prefix
	ScopeEither               Mutation = "scope-either"                // of namespace and task, one match is enough
	ScopeDeaf                 Mutation = "scope-deaf"                  // a discovery pop is not woken
	PathNamesUnchecked        Mutation = "path-names-unchecked"        // names in paths are not checked
	EmptyPop200               Mutation = "empty-pop200"                // a pop that finds nothing is answered 200
	LengthOn204               Mutation = "204-with-length"             // a 204 has a Content-Length
	BatchDefault100           Mutation = "batch-default100"            // the default batch is 100
	BatchIgnored              Mutation = "pop-ignores-batch"           // batch is ignored
	BatchUnbounded            Mutation = "batch-unbounded"             // a batch may hold any number of messages
	BatchPerPartition         Mutation = "batch-per-partition"         // batch holds for each partition
	PartitionsDefaultUncapped Mutation = "partitions-default-uncapped" // without partitions there is no cap
	PartitionsIgnored         Mutation = "partitions-ignored"          // one partition is claimed whatever partitions says
	UncappedIsOne             Mutation = "uncapped-is-one"             // partitions 0 claims one
	QueryUntyped              Mutation = "query-untyped"               // parameters of a wrong type are ignored
	BooleansStrict            Mutation = "booleans-strict"             // only true is true
	GroupUnchecked            Mutation = "group-unchecked"             // group names are not checked
	FromInvalidRefused        Mutation = "from-invalid-refused"        // a subscriptionFrom that cannot be parsed is refused
	PopCreatesNothing         Mutation = "pop-creates-nothing"         // a pop does not create its queue
	CreatedAtMilliseconds     Mutation = "created-at-milliseconds"     // createdAt has milliseconds
	CreatedAtWrong            Mutation = "created-at-wrong"            // createdAt is an hour early
	PartitionIDPerPop         Mutation = "partition-id-per-pop"        // partition ids change
	LeaseMissingOnMessage     Mutation = "lease-missing-on-message"    // messages do not tell their lease
	MessageNamesModeGroup     Mutation = "message-names-mode-group"    // messages name the group of queue mode
	MessageNamesOtherQueue    Mutation = "message-names-other-queue"   // messages name no queue of theirs
	ReverseMessages           Mutation = "reverse-messages"            // messages come in reverse order
	InterleavePartitions      Mutation = "interleave-partitions"       // messages of several partitions are mixed
	AnswerNamesLast           Mutation = "answer-names-last"           // the answer names the last claimed partition
	DiscoveryNamesQueue       Mutation = "discovery-names-queue"       // a discovery answer names a queue
	ClaimsMiscounted          Mutation = "claims-miscounted"           // partitionsClaimed counts messages
	AttemptConstant           Mutation = "attempt-constant"            // deliveryAttempt is always 1

	// Pop: leases and groups.

	AutoAckForgets       Mutation = "auto-ack-forgets"        // autoAck does not commit
	AutoAckNamesLease    Mutation = "auto-ack-names-lease"    // autoAck answers a lease id
	LeaseNotExclusive    Mutation = "lease-not-exclusive"     // leased messages are delivered again
	BlocksOnLease        Mutation = "blocks-on-lease"         // a leased partition ends the search
	LeasePerPartition    Mutation = "lease-per-partition"     // each partition has a lease id of its own
	LeaseNegativeIsOne   Mutation = "lease-negative-is-one"   // leaseSeconds below 0 is one second
	LeaseSecondsIgnored  Mutation = "lease-seconds-ignored"   // leaseSeconds is ignored
	QueueLeaseIgnored    Mutation = "queue-lease-ignored"     // the lease time of the queue is ignored
	LeaseTimeZeroRefused Mutation = "lease-time-zero-refused" // a lease time of 0 is answered 400
	LeaseTimeZeroHolds   Mutation = "lease-time-zero-holds"   // a lease time of 0 leases for no time
	LeaseForever         Mutation = "lease-forever"           // leases do not expire
	ExpirySkips          Mutation = "expiry-skips"            // an expired lease commits its messages
	ExpiryCharges        Mutation = "expiry-charges"          // an expired lease charges the retry budget
	SharedGroups         Mutation = "shared-groups"           // all groups share their cursors
	ModeGroupApart       Mutation = "mode-group-apart"        // naming the group of queue mode is another group

	// Pop: subscription.

	StartsNew               Mutation = "starts-new"                 // a new group skips the backlog
	SubscriptionIgnored     Mutation = "subscription-ignored"       // subscription parameters are ignored
	FromNowIgnored          Mutation = "from-now-ignored"           // subscriptionFrom now is ignored
	FromTimeIgnored         Mutation = "from-time-ignored"          // subscriptionFrom with a time is ignored
	SeedsAgain              Mutation = "seeds-again"                // subscription parameters seed again
	QueueModeSeeded         Mutation = "queue-mode-seeded"          // subscription parameters seed queue mode
	NewSkipsLaterPartitions Mutation = "new-skips-later-partitions" // a new group skips the first messages of later partitions

	// Pop: waiting and visibility.

	TimeoutIgnored        Mutation = "timeout-ignored"          // a waiting pop does not wait
	WaitAlways            Mutation = "wait-always"              // every pop waits
	WakeAll               Mutation = "wake-all"                 // a push ends every parked pop
	NoWakeOnRelease       Mutation = "no-wake-on-release"       // a released lease wakes nobody
	DelayIgnored          Mutation = "delay-ignored"            // delayedProcessing is ignored
	WindowBufferIgnored   Mutation = "window-buffer-ignored"    // windowBuffer is ignored
	WindowBufferNeverFull Mutation = "window-buffer-never-full" // windowBuffer holds any number of messages
	MinWaitIgnored        Mutation = "min-wait-ignored"         // minPopWaitTime is ignored
	MinWaitAlways         Mutation = "min-wait-always"          // minPopWaitTime delays every pop

	// Ack: request and answer.

	SingleAckObject         Mutation = "single-ack-object"        // a single ack is answered with an object
	ReverseAckResults       Mutation = "reverse-ack-results"      // ack results come in reverse order
	AckErrorOmitted         Mutation = "ack-error-omitted"        // an ack result without error has no key error
	AckFieldsOptional       Mutation = "ack-fields-optional"      // transactionId and partitionId may be missing
	AcknowledgmentsOptional Mutation = "acknowledgments-optional" // a batch needs no acknowledgments
	EmptyBatchRefused       Mutation = "empty-batch-refused"      // an empty batch is refused
	PartialBadAck           Mutation = "partial-bad-ack"          // the items before a bad one are acknowledged
	PartitionIDChecked      Mutation = "partition-id-checked"     // a partitionId that is no UUID fails the request
	UnknownPartitionFails   Mutation = "unknown-partition-fails"  // an unknown partitionId fails the request
	NullRefused             Mutation = "null-refused"             // null is refused for optional fields
	ItemGroupRead           Mutation = "item-group-read"          // the consumerGroup of an item is read
	AckGroupIgnored         Mutation = "ack-group-ignored"        // the consumerGroup is ignored
	AckGroupDefaultOther    Mutation = "ack-group-default-other"  // the default group is not that of queue mode
	StatusFolded            Mutation = "status-folded"            // the case of a status is folded
	OKMeansFailed           Mutation = "ok-means-failed"          // ok is an unknown status
	EmptyStatusCompletes    Mutation = "empty-status-completes"   // an empty status completes

	// Ack: cursor and lease.

	NotPrefix             Mutation = "ack-not-prefix"           // an ack commits its message only
	AckMovesAllPartitions Mutation = "ack-moves-all-partitions" // an ack commits all partitions of the queue
	AckMovesAllGroups     Mutation = "ack-moves-all-groups"     // an ack commits for all groups
	FullKeepsLease        Mutation = "full-keeps-lease"         // a full ack keeps the lease
	PartialReleases       Mutation = "partial-releases"         // a partial ack releases the lease
	LeaseNotFenced        Mutation = "lease-not-fenced"         // any lease id is accepted
	LeaseErrorMoves       Mutation = "lease-error-moves"        // a wrong lease is reported but the cursor moves
	ExpiredLeaseAccepted  Mutation = "expired-lease-accepted"   // an expired lease id is accepted
	LeaseRequired         Mutation = "lease-required"           // an ack without a lease id is refused
	NoopNotReported       Mutation = "noop-not-reported"        // a completion of what is committed is not told from another
	NoopRefused           Mutation = "noop-refused"             // a completion of what is committed is refused
	LateNackAccepted      Mutation = "late-nack-accepted"       // a negative ack of what is committed is accepted
	UnresolvableSucceeds  Mutation = "unresolvable-succeeds"    // an unknown transaction id is a success
	UnresolvableReleases  Mutation = "unresolvable-releases"    // an unknown transaction id releases the lease
	ResolvesForDedupOnly  Mutation = "resolves-for-dedup-only"  // ids resolve for the dedup window only
	ConsumerInvented      Mutation = "consumer-invented"        // an ack creates its consumer
	BatchStopsAtRefusal   Mutation = "batch-stops-at-refusal"   // after a refused group no other is looked at
	OrderMatters          Mutation = "order-matters"            // the last item of a call wins

	// Ack: negative.

	NackIgnored         Mutation = "nack-ignored"           // a negative ack completes
	NackRedeliversBatch Mutation = "nack-redelivers-batch"  // a negative ack redelivers what was before it
	NackKeepsLease      Mutation = "nack-keeps-lease"       // a negative ack keeps the lease
	NackReleaseNotTold  Mutation = "nack-release-not-told"  // a negative ack does not tell that the lease is released
	NackIsFailure       Mutation = "nack-is-failure"        // a processed negative ack is reported as a failure
	ReleasedOnAll       Mutation = "released-on-all"        // leaseReleased stands on all items
	HighestNackClamps   Mutation = "highest-nack-clamps"    // the highest negative item bounds
	CompletionBeatsNack Mutation = "completion-beats-nack"  // a later completion beats a negative ack
	FirstVerbWins       Mutation = "first-verb-wins"        // of several statuses of a message the first counts
	SupersededNotTold   Mutation = "superseded-not-told"    // a completion above a negative ack is a success
	LaterNackRefused    Mutation = "later-nack-refused"     // a negative ack above another is refused
	LimitOffByOne       Mutation = "limit-off-by-one"       // the budget is one smaller
	LimitZeroIsThree    Mutation = "limit-zero-is-three"    // retryLimit 0 is the default
	BudgetEndless       Mutation = "budget-endless"         // the budget is never exhausted
	BudgetPerMessage    Mutation = "budget-per-message"     // every message has a budget of its own
	BudgetPerPartition  Mutation = "budget-per-partition"   // all groups of a partition share a budget
	BudgetNotReset      Mutation = "budget-not-reset"       // a full ack does not reset the budget
	ChargePerItem       Mutation = "charge-per-item"        // every failed item of a call is charged
	RetryCharges        Mutation = "retry-charges"          // a retry charges the budget
	DLQMeansFailed      Mutation = "dlq-means-failed"       // dlq is an ordinary failure
	DLQOptionsAnded     Mutation = "dlq-options-anded"      // both options are needed to file dead letters
	DLQAlways           Mutation = "dlq-always"             // dead letters are filed whatever the options
	DLQNotReported      Mutation = "dlq-not-reported"       // dlq is always false
	DeadLetterStays     Mutation = "dead-letter-stays"      // a dead letter is delivered again
	DeadLetterTakesTail Mutation = "dead-letter-takes-tail" // a dead letter takes the rest of the batch with it

	// Lease extension.

	ExtendOnlySays        Mutation = "extend-only-says"        // an extension changes nothing
	ExtendBodyChecked     Mutation = "extend-body-checked"     // a bad body fails an extension
	ExtendDefault30       Mutation = "extend-default30"        // the default extension is 30 s
	ExtendSecondsIgnored  Mutation = "extend-seconds-ignored"  // seconds are ignored
	ExtendZeroIsDefault   Mutation = "extend-zero-is-default"  // seconds below 1 are the default
	ExtendShortens        Mutation = "extend-shortens"         // an extension may shorten a lease
	ExtendFirstOnly       Mutation = "extend-first-only"       // only one partition is extended
	ExtendUnbounded       Mutation = "extend-unbounded"        // a lease may be extended for decades
	ExtendRevives         Mutation = "extend-revives"          // an expired lease is extended
	ExtendUnknown404      Mutation = "extend-unknown404"       // an unknown lease is answered 404
	ExtendUnknownSucceeds Mutation = "extend-unknown-succeeds" // an unknown lease is a success
	ExtendNamesDiffer     Mutation = "extend-names-differ"     // the three expiries differ

	// Configure.

	ConfigureQueueOptional      Mutation = "configure-queue-optional"       // a missing queue has a default
	ConfigureCreatesNothing     Mutation = "configure-creates-nothing"      // configure creates no queue
	ConfigureStorageMissing     Mutation = "configure-storage-missing"      // storage is not told
	ConfigureDefaultLease60     Mutation = "configure-default-lease60"      // the default lease time is 60 s
	ConfigureMerges             Mutation = "configure-merges"               // omitted options keep their values
	ConfigureKeepsImplicitLease Mutation = "configure-keeps-implicit-lease" // a queue created by a push keeps its lease time
	ConfigureRecreates          Mutation = "configure-recreates"            // configure makes the queue anew
	ConfigureNoEffect           Mutation = "configure-no-effect"            // options are echoed but not used
	TopLevelIgnored             Mutation = "top-level-ignored"              // options at top level are ignored
	NamespaceIgnored            Mutation = "namespace-ignored"              // namespace and task are ignored
	NegativeIsZero              Mutation = "negative-is-zero"               // negative options are 0
	NegativeHalfApplied         Mutation = "negative-half-applied"          // a refused configure changes the options before the bad one
	OptionsCoerced              Mutation = "options-coerced"                // numeric options that are no integers are ignored
	BooleansCoerced             Mutation = "booleans-coerced"               // boolean options that are no booleans are true
	EchoDropsUnused             Mutation = "echo-drops-unused"              // options without effect are not echoed

	// Consumer groups.

	GroupsOfFirstQueue          Mutation = "groups-of-first-queue"          // a group is listed with one queue only
	LagSkipsLeased              Mutation = "lag-skips-leased"               // leased messages are not counted as lag
	TimeLagOfNewest             Mutation = "time-lag-of-newest"             // the age of the newest message counts
	NeverLagging                Mutation = "never-lagging"                  // every group is stable
	NeverDead                   Mutation = "never-dead"                     // no group is dead
	SubscriptionNotShown        Mutation = "subscription-not-shown"         // the time of a subscription is not told
	LagHoursInMinutes           Mutation = "lag-hours-in-minutes"           // lag_hours are minutes
	MinLagIgnored               Mutation = "min-lag-ignored"                // minLagSeconds is ignored
	MinLagDefaultZero           Mutation = "min-lag-default-zero"           // the default of minLagSeconds is 0
	MinLagCoerced               Mutation = "min-lag-coerced"                // a bad minLagSeconds is 0
	GroupOfFirstQueue           Mutation = "group-of-first-queue"           // a group is described in one queue only
	ConsumedConstant            Mutation = "consumed-constant"              // totalConsumed is always 0
	GroupLeaseHidden            Mutation = "group-lease-hidden"             // leases of a group are not told
	UnknownGroupEmpty           Mutation = "unknown-group-empty"            // an unknown group is an empty object
	GroupDeletionMiscounts      Mutation = "group-deletion-miscounts"       // deletedPartitions is always 0
	GroupDeletionForgetsNothing Mutation = "group-deletion-forgets-nothing" // a deleted group goes on where it stood
	DeletedLeasesLive           Mutation = "deleted-leases-live"            // leases of a deleted group stay
	DeletesMetadataAlways       Mutation = "deletes-metadata-always"        // deleteMetadata is ignored
	DeleteUnknownGroup404       Mutation = "delete-unknown-group404"        // deleting an unknown group is answered 404
	GroupQueueNotNamed          Mutation = "group-queue-not-named"          // the deletion of a group of a queue does not name the queue
	GroupDeletedEverywhere      Mutation = "group-deleted-everywhere"       // the deletion of a group of a queue concerns all queues
	SubscriptionNotCounted      Mutation = "subscription-not-counted"       // rowsUpdated is always 0
	SubscriptionMovesCursors    Mutation = "subscription-moves-cursors"     // a new subscription starts the group over
	SubscriptionOnlySaid        Mutation = "subscription-only-said"         // a new subscription has no effect
	SubscriptionLenient         Mutation = "subscription-lenient"           // a bad subscription is accepted
	SeekEndBeforeLast           Mutation = "seek-end-before-last"           // the end is before the last message
	SeekAfterTimestamp          Mutation = "seek-after-timestamp"           // a message created at the time itself is skipped
	SeekNeverForward            Mutation = "seek-never-forward"             // a time does not move a group forward
	SeekMovesAllGroups          Mutation = "seek-moves-all-groups"          // a seek moves all groups of the queue
	SeekKeepsLeases             Mutation = "seek-keeps-leases"              // leases stay
	SeekKeepsRetries            Mutation = "seek-keeps-retries"             // the retry budget is not reset
	SeekKeepsAttempts           Mutation = "seek-keeps-attempts"            // attempts go on
	SeekWakesNobody             Mutation = "seek-wakes-nobody"              // a parked pop does not see a seek
	SeekDefaultsToEnd           Mutation = "seek-defaults-to-end"           // without a target a seek goes to the end
	SeekUnmatched200            Mutation = "seek-unmatched200"              // a seek that matches nothing succeeds
	SeekPartitionMovesAll       Mutation = "seek-partition-moves-all"       // a seek in a partition moves all partitions
	SeekPartitionBodyRequired   Mutation = "seek-partition-body-required"   // a seek in a partition needs a body
	SeekPartitionLenient        Mutation = "seek-partition-lenient"         // a seek in a partition without a target goes to the end
	SeekPartitionUnmatched200   Mutation = "seek-partition-unmatched200"    // a seek in an unknown partition succeeds

	// Resources, health and the clock.

	ListsConfiguredOnly   Mutation = "lists-configured-only"    // only configured queues are listed
	TotalsMiscounted      Mutation = "totals-miscounted"        // totals are one too high
	PendingOfFastest      Mutation = "pending-of-fastest"       // pending is measured against the fastest group
	ProcessingNotCounted  Mutation = "processing-not-counted"   // processing is always 0
	DeadLettersNotCounted Mutation = "dead-letters-not-counted" // deadLetter is always 0
	NewestIsOldest        Mutation = "newest-is-oldest"         // newestMessage is the oldest
	TotalsOfFirst         Mutation = "totals-of-first"          // totals are those of the first partition
	GetCreates            Mutation = "get-creates"              // inspecting a queue creates it
	UnknownQueueEmpty     Mutation = "unknown-queue-empty"      // an unknown queue is an empty object
	DeleteKeepsQueue      Mutation = "delete-keeps-queue"       // a deleted queue stays
	DeleteKeepsMessages   Mutation = "delete-keeps-messages"    // a deleted queue leaves its messages
	DeleteKeepsDedup      Mutation = "delete-keeps-dedup"       // a deleted queue leaves its transaction ids
	DeleteKeepsLeases     Mutation = "delete-keeps-leases"      // the leases of a deleted queue stay live
	DeleteUnknown404      Mutation = "delete-unknown404"        // deleting an unknown queue is answered 404
	HealthBare            Mutation = "health-bare"              // health tells only a status
	EncryptionHidden      Mutation = "encryption-hidden"        // health does not tell that payloads are encrypted
	EncryptionRewrites    Mutation = "encryption-rewrites"      // payloads of an encrypted queue are decoded and encoded again
	DurabilityHidden      Mutation = "durability-hidden"        // health does not tell how durable the database is
	StatusWrong           Mutation = "status-wrong"             // status is not ok
	MetricsJSON           Mutation = "metrics-json"             // metrics are JSON
	NeverRevalidated      Mutation = "never-revalidated"        // the description is always sent in full
	OpenAPIEmpty          Mutation = "open-api-empty"           // the served description is empty
	IndexMissing          Mutation = "index-missing"            // there is no front page
	UnmatchedGet404       Mutation = "unmatched-get404"         // unmatched GETs are answered 404
	ClockReadsZero        Mutation = "clock-reads-zero"         // the clock does not tell its offset
	ClockGoesBack         Mutation = "clock-goes-back"          // the clock can be moved back
	ClockUnbounded        Mutation = "clock-unbounded"          // the clock can be moved by centuries
	ClockLags             Mutation = "clock-lags"               // the clock moves after the answer
	ClockStands           Mutation = "clock-stands"             // the clock does not move
)

// Mutations lists every mutation.
func Mutations() []Mutation {
	return slices.Concat([]Mutation{
		PlainNotFound,
		NestedErrors,
		UnquotedErrors,
		VagueErrors,
		SmallerBodyLimit,
		NoBodyLimit,
		LateBodyLimit,
		RequireContentType,
		ReplaceInvalidUTF8,
		FoldKeys,
		RejectUnknownKeys,
		FirstKeyWins,
		ShallowBodies,
		DeepBodies,
		PathEscapesKept,
		ForeignAllowed,
		OriginsRefused,
		NeverRoutesExist,
		MethodNotAllowed,
		PartialBadPush,
		ItemsOptional,
		SingleItem,
		RejectEmptyItems,
		SmallerItemLimit,
		LargerItemLimit,
		TraceIDChecked,
		AcceptDataAlias,
		PayloadOptional,
		RejectNullPayload,
		QueueOptional,
		QueueCoerced,
		QueueEmptyAllowed,
		QueueControlAllowed,
		NullPartitionRefused,
		OtherDefaultPartition,
		PartitionCoerced,
		PartitionControlAllowed,
		PartitionEmptyRefused,
		NullTransactionIDRefused,
		TransactionIDCoerced,
		TransactionIDControlAllowed,
		TransactionIDEmptyKept,
		CountCharacters,
		ShortNames,
		TruncateNames,
		TrimNames,
		FoldTransactionIDs,
		EscapesKept,
		ReplaceSurrogates,
		PushAnswers200,
		WrapResults,
		ReverseResults,
		ReverseGroups,
		LateCommit,
		NoWakeOnPush,
		FirstQueueOnly,
		SinglePartition,
		NotVersion7,
		QueueNameOfFirst,
		IndexFromOne,
		LeakPartition,
		CompactPayloads,
		RewritePayloads,
		NewestFirst,
		OtherMessageID,
		TransactionIDNotEchoed,
		BufferedStatus,
		TraceIDKept,
		ProducerSubKept,
		TraceParentDropped,
		TraceParentRefused,
		TraceParentUnchecked,
		NamespaceNotDerived,
		WrongImplicitLease,
		NoDedup,
		DedupOffByDefault,
		RacyDedup,
		WindowIgnored,
		WindowTenfold,
		WindowHalved,
		WindowSlides,
		WindowZeroIsDefault,
		DedupAcrossPartitions,
		DedupAcrossQueues,
		DedupForgetsConsumed,
		NoDedupInRequest,
		FollowerNewID,
		DuplicateNewID,
		DuplicateZeroID,
		DuplicateWritten,
		DuplicateOverwrites,
		DuplicateSaysQueued,
		WholeCallDuplicate,
		PartitionRouteIgnored,
		UnknownPartition404,
		ScopeOptional,
		ScopeErrorFlat,
		ScopePrefix,
		ScopeEither,
		ScopeDeaf,
		PathNamesUnchecked,
		EmptyPop200,
		LengthOn204,
		BatchDefault100,
		BatchIgnored,
		BatchUnbounded,
		BatchPerPartition,
		PartitionsDefaultUncapped,
		PartitionsIgnored,
		UncappedIsOne,
		QueryUntyped,
		BooleansStrict,
		GroupUnchecked,
		FromInvalidRefused,
		PopCreatesNothing,
		CreatedAtMilliseconds,
		CreatedAtWrong,
		PartitionIDPerPop,
		LeaseMissingOnMessage,
		MessageNamesModeGroup,
		MessageNamesOtherQueue,
		ReverseMessages,
		InterleavePartitions,
		AnswerNamesLast,
		DiscoveryNamesQueue,
		ClaimsMiscounted,
		AttemptConstant,
		AutoAckForgets,
		AutoAckNamesLease,
		LeaseNotExclusive,
		BlocksOnLease,
		LeasePerPartition,
		LeaseNegativeIsOne,
		LeaseSecondsIgnored,
		QueueLeaseIgnored,
		LeaseTimeZeroRefused,
		LeaseTimeZeroHolds,
		LeaseForever,
		ExpirySkips,
		ExpiryCharges,
		SharedGroups,
		ModeGroupApart,
		StartsNew,
		SubscriptionIgnored,
		FromNowIgnored,
		FromTimeIgnored,
		SeedsAgain,
		QueueModeSeeded,
		NewSkipsLaterPartitions,
		TimeoutIgnored,
		WaitAlways,
		WakeAll,
		NoWakeOnRelease,
		DelayIgnored,
		WindowBufferIgnored,
		WindowBufferNeverFull,
		MinWaitIgnored,
		MinWaitAlways,
		SingleAckObject,
		ReverseAckResults,
		AckErrorOmitted,
		AckFieldsOptional,
		AcknowledgmentsOptional,
		EmptyBatchRefused,
		PartialBadAck,
		PartitionIDChecked,
		UnknownPartitionFails,
		NullRefused,
		ItemGroupRead,
		AckGroupIgnored,
		AckGroupDefaultOther,
		StatusFolded,
		OKMeansFailed,
		EmptyStatusCompletes,
		NotPrefix,
		AckMovesAllPartitions,
		AckMovesAllGroups,
		FullKeepsLease,
		PartialReleases,
		LeaseNotFenced,
		LeaseErrorMoves,
		ExpiredLeaseAccepted,
		LeaseRequired,
		NoopNotReported,
		NoopRefused,
		LateNackAccepted,
		UnresolvableSucceeds,
		UnresolvableReleases,
		ResolvesForDedupOnly,
		ConsumerInvented,
		BatchStopsAtRefusal,
		OrderMatters,
		NackIgnored,
		NackRedeliversBatch,
		NackKeepsLease,
		NackReleaseNotTold,
		NackIsFailure,
		ReleasedOnAll,
		HighestNackClamps,
		CompletionBeatsNack,
		FirstVerbWins,
		SupersededNotTold,
		LaterNackRefused,
		LimitOffByOne,
		LimitZeroIsThree,
		BudgetEndless,
		BudgetPerMessage,
		BudgetPerPartition,
		BudgetNotReset,
		ChargePerItem,
		RetryCharges,
		DLQMeansFailed,
		DLQOptionsAnded,
		DLQAlways,
		DLQNotReported,
		DeadLetterStays,
		DeadLetterTakesTail,
		ExtendOnlySays,
		ExtendBodyChecked,
		ExtendDefault30,
		ExtendSecondsIgnored,
		ExtendZeroIsDefault,
		ExtendShortens,
		ExtendFirstOnly,
		ExtendUnbounded,
		ExtendRevives,
		ExtendUnknown404,
		ExtendUnknownSucceeds,
		ExtendNamesDiffer,
		ConfigureQueueOptional,
		ConfigureCreatesNothing,
		ConfigureStorageMissing,
		ConfigureDefaultLease60,
		ConfigureMerges,
		ConfigureKeepsImplicitLease,
		ConfigureRecreates,
		ConfigureNoEffect,
		TopLevelIgnored,
		NamespaceIgnored,
		NegativeIsZero,
		NegativeHalfApplied,
		OptionsCoerced,
		BooleansCoerced,
		EchoDropsUnused,
		GroupsOfFirstQueue,
		LagSkipsLeased,
		TimeLagOfNewest,
		NeverLagging,
		NeverDead,
		SubscriptionNotShown,
		LagHoursInMinutes,
		MinLagIgnored,
		MinLagDefaultZero,
		MinLagCoerced,
		GroupOfFirstQueue,
		ConsumedConstant,
		GroupLeaseHidden,
		UnknownGroupEmpty,
		GroupDeletionMiscounts,
		GroupDeletionForgetsNothing,
		DeletedLeasesLive,
		DeletesMetadataAlways,
		DeleteUnknownGroup404,
		GroupQueueNotNamed,
		GroupDeletedEverywhere,
		SubscriptionNotCounted,
		SubscriptionMovesCursors,
		SubscriptionOnlySaid,
		SubscriptionLenient,
		SeekEndBeforeLast,
		SeekAfterTimestamp,
		SeekNeverForward,
		SeekMovesAllGroups,
		SeekKeepsLeases,
		SeekKeepsRetries,
		SeekKeepsAttempts,
		SeekWakesNobody,
		SeekDefaultsToEnd,
		SeekUnmatched200,
		SeekPartitionMovesAll,
		SeekPartitionBodyRequired,
		SeekPartitionLenient,
		SeekPartitionUnmatched200,
		ListsConfiguredOnly,
		TotalsMiscounted,
		PendingOfFastest,
		ProcessingNotCounted,
		DeadLettersNotCounted,
		NewestIsOldest,
		TotalsOfFirst,
		GetCreates,
		UnknownQueueEmpty,
		DeleteKeepsQueue,
		DeleteKeepsMessages,
		DeleteKeepsDedup,
		DeleteKeepsLeases,
		DeleteUnknown404,
		HealthBare,
		EncryptionHidden,
		EncryptionRewrites,
		DurabilityHidden,
		StatusWrong,
		MetricsJSON,
		NeverRevalidated,
		OpenAPIEmpty,
		IndexMissing,
		UnmatchedGet404,
		ClockReadsZero,
		ClockGoesBack,
		ClockUnbounded,
		ClockLags,
		ClockStands,
	}, outageMutations, authMutations, retentionMutations, statsMutations, transactionMutations, streamMutations, messageMutations, traceMutations, publishMutations, topicMutations, scheduleMutations, gateMutations, dlqMutations)
}

package reference

// Publish.
const (
	QueryHeadersIgnored        Mutation = "query-headers-ignored"         // Upstash parameters of the query have no effect
	QueryHeadersKept           Mutation = "query-headers-kept"            // Upstash parameters of the query reach the destination
	EncodedDestinationRefused  Mutation = "encoded-destination-refused"   // a percent-encoded destination is none
	DestinationCleaned         Mutation = "destination-cleaned"           // double slashes of a destination are collapsed
	AnyScheme                  Mutation = "any-scheme"                    // any scheme is accepted
	UnknownTopicAccepted       Mutation = "unknown-topic-accepted"        // an unknown topic is taken for a host
	PublishDelayIgnored        Mutation = "publish-delay-ignored"         // delays have no effect
	CompoundDelayCut           Mutation = "compound-delay-cut"            // only the first part of a delay counts
	PublishNotBeforeIgnored    Mutation = "publish-not-before-ignored"    // Upstash-Not-Before has no effect
	ContentTypeInvented        Mutation = "content-type-invented"         // a delivery without a Content-Type gets one
	MethodIgnored              Mutation = "method-ignored"                // every delivery is a POST
	ForwardIgnored             Mutation = "forward-ignored"               // Upstash-Forward headers are dropped
	AllForwarded               Mutation = "all-forwarded"                 // headers of the publish are delivered
	RetriesIgnored             Mutation = "retries-ignored"               // every message is retried three times
	OneRetryMore               Mutation = "one-retry-more"                // a message is retried once more than it says
	DedupIDUnchecked           Mutation = "dedup-id-unchecked"            // deduplication ids may hold anything
	ContentDedupIgnored        Mutation = "content-dedup-ignored"         // content-based deduplication has no effect
	ContentDedupIgnoresHeaders Mutation = "content-dedup-ignores-headers" // it does not look at headers
	ContentDedupIgnoresBody    Mutation = "content-dedup-ignores-body"    // it does not look at the body
	ContentDedupIgnoresURL     Mutation = "content-dedup-ignores-url"     // it does not look at the destination
	PublishWindowDoubled       Mutation = "publish-window-doubled"        // ids count for 180 days
	PublishWindowHalved        Mutation = "publish-window-halved"         // ids count for 45 days
	PublishDedupIgnored        Mutation = "publish-dedup-ignored"         // deduplication ids have no effect
	PublishDuplicateDelivered  Mutation = "publish-duplicate-delivered"   // a duplicate is delivered
	PublishDuplicateNewID      Mutation = "publish-duplicate-new-id"      // a duplicate carries a new id
	PublishAnswers200          Mutation = "publish-answers200"            // a publish is answered 200
	PublishBodyTrimmed         Mutation = "publish-body-trimmed"          // white space around a body is dropped
	PastTimesWait              Mutation = "past-times-wait"               // a message whose Upstash-Not-Before is past waits for the clock
	RetriedFromOne             Mutation = "retried-from-one"              // Upstash-Retried counts the attempt itself
	RedirectsSucceed           Mutation = "redirects-succeed"             // a redirect is a success
	FailureNotLogged           Mutation = "failure-not-logged"            // the end of a message that failed is not logged
	BackoffSlower              Mutation = "backoff-slower"                // retries come late
	BackoffFaster              Mutation = "backoff-faster"                // retries come early
	UnknownMessageEmpty        Mutation = "unknown-message-empty"         // an unknown message is an empty one
	DeliveredForgotten         Mutation = "delivered-forgotten"           // a delivered message cannot be read
	MessageMethodWrong         Mutation = "message-method-wrong"          // a message is read with another method
	CancelNotLogged            Mutation = "cancel-not-logged"             // a cancellation is not logged as requested
	CancelDoesNothing          Mutation = "cancel-does-nothing"           // a cancelled message is delivered
	LogsOfAll                  Mutation = "logs-of-all"                   // the log of a message is that of all
	MessageIDPerAttempt        Mutation = "message-id-per-attempt"        // each attempt carries another message id
	SignedWithoutBody          Mutation = "signed-without-body"           // the signature is not about the body
	SignedForHost              Mutation = "signed-for-host"               // the signature names the host of the destination only
	NonRetryableRetried        Mutation = "non-retryable-retried"         // a 489 that says that it is not retryable is retried
	CallbackAtEnd              Mutation = "callback-at-end"               // only the last attempt is told of
	FailureCallbackEarly       Mutation = "failure-callback-early"        // the failure callback is told of every attempt
	CallbackStatusMissing      Mutation = "callback-status-missing"       // a callback says that there was no answer
	CallbackWithoutDLQ         Mutation = "callback-without-dlq"          // a failure callback does not name the dead letter
	CallbackBodyPlain          Mutation = "callback-body-plain"           // a callback holds the answer as text
	CallbackHeadersIgnored     Mutation = "callback-headers-ignored"      // callbacks carry none of their headers
	CallbackMethodIgnored      Mutation = "callback-method-ignored"       // every callback is a POST
	RetryDelayIgnored          Mutation = "retry-delay-ignored"           // Upstash-Retry-Delay has no effect
	RetryDelayFromOne          Mutation = "retry-delay-from-one"          // retried is 1 before the first retry
	RetryDelaySeconds          Mutation = "retry-delay-seconds"           // Upstash-Retry-Delay is in seconds
	RetryAfterIgnored          Mutation = "retry-after-ignored"           // Retry-After has no effect
	RetryAfterLoses            Mutation = "retry-after-loses"             // Upstash-Retry-Delay overrides Retry-After
	HeaderForwardIgnored       Mutation = "header-forward-ignored"        // Upstash-Header-Forward has no effect
	TokenForwarded             Mutation = "token-forwarded"               // Upstash-Header-Forward delivers the token
	ContentDedupLikeV1         Mutation = "content-dedup-like-v1"         // in version 2 it looks at all Upstash headers
	ContentDedupIgnoresType    Mutation = "content-dedup-ignores-type"    // in version 2 it does not look at the Content-Type
	BatchQueuesReversed        Mutation = "batch-queues-reversed"         // the items of a batch are accepted from the last on
	BatchAnswersReversed       Mutation = "batch-answers-reversed"        // the results of a batch come in reverse order
	BatchStopsAtError          Mutation = "batch-stops-at-error"          // an item that is refused ends its batch
	BatchQueueIgnored          Mutation = "batch-queue-ignored"           // the queue of an item has no effect
	HeadersNotRedacted         Mutation = "headers-not-redacted"          // redacted headers are shown
	BodyNotRedacted            Mutation = "body-not-redacted"             // a redacted body is shown
	BinaryBodyAsText           Mutation = "binary-body-as-text"           // a body that is not UTF-8 is shown as text
	MessagesOldestFirst        Mutation = "messages-oldest-first"         // messages are listed oldest first
	MessagesOnePage            Mutation = "messages-one-page"             // the list of messages has one page
	TaskNextMissing            Mutation = "task-next-missing"             // a task does not tell when it is tried next
	TaskErrorMissing           Mutation = "task-error-missing"            // a task does not tell its last error
	TaskReadDiffers            Mutation = "task-read-differs"             // a task that is read is always new
	CompletedCancelled         Mutation = "completed-cancelled"           // a delivered message is cancelled
	CompletedCounted           Mutation = "completed-counted"             // delivered messages count as cancelled
	SelectorFirstValue         Mutation = "selector-first-value"          // of the values of a selector the first counts
	SelectorsWiden             Mutation = "selectors-widen"               // what any selector names is selected
	UnknownSelectorIgnored     Mutation = "unknown-selector-ignored"      // selectors that are not known are ignored
	EventsOnePage              Mutation = "events-one-page"               // the log of version 1 has one page
	LogsAliasEmpty             Mutation = "logs-alias-empty"              // the other name of the log of version 1 is empty
	StateFilterIgnored         Mutation = "state-filter-ignored"          // the log is not filtered by state
	EventsWithoutAnswer        Mutation = "events-without-answer"         // an entry of the log does not tell what was answered
	OrderIgnored               Mutation = "order-ignored"                 // the log comes latest first
	CursorAtEnd                Mutation = "cursor-at-end"                 // the last page of the log has a cursor
	LogsKeyEmpty               Mutation = "logs-key-empty"                // the key logs holds nothing
	CollapsedSlashRefused      Mutation = "collapsed-slash-refused"       // a URL that lost a slash is none
	UserInfoAccepted           Mutation = "user-info-accepted"            // a URL may hold a user and a password
	QueueTransactionLost       Mutation = "queue-transaction-lost"        // what enters an ordered queue has its message id as transaction id
	QueuePartitionIgnored      Mutation = "queue-partition-ignored"       // what enters an ordered queue enters its default partition
	ForwardUnchecked           Mutation = "forward-unchecked"             // any header is forwarded
	ForwardUnbounded           Mutation = "forward-unbounded"             // any number of headers is forwarded
	CallerNotNamed             Mutation = "caller-not-named"              // a delivery does not tell who published it
	WebhookWithoutTime         Mutation = "webhook-without-time"          // the signature of Standard Webhooks is not about the time
	ContentWins                Mutation = "content-wins"                  // the content counts instead of a deduplication id
	FailedForgetsID            Mutation = "failed-forgets-id"             // the deduplication id of a message that failed is free again
	NoAnswerFinal              Mutation = "no-answer-final"               // an attempt that is not answered is the last one
	AttemptTimeoutIgnored      Mutation = "attempt-timeout-ignored"       // Upstash-Timeout has no effect
	CancelAborts               Mutation = "cancel-aborts"                 // a cancelled message is over before its attempt is
	RetryAfterSecondsOnly      Mutation = "retry-after-seconds-only"      // Retry-After is a number of seconds
	RetryAfterUnbounded        Mutation = "retry-after-unbounded"         // Retry-After may be any time
	CallbackRetriesIgnored     Mutation = "callback-retries-ignored"      // callbacks are retried as often as their message
	BooleansExact              Mutation = "booleans-exact"                // only true is true, and everything else is not
	PublishPathsExact          Mutation = "publish-paths-exact"           // paths of the publish half match by exact case
	QueryTokenIgnored          Mutation = "query-token-ignored"           // a token in the query is none
	TopicFirstOnly             Mutation = "topic-first-only"              // a message of version 1 goes to the first endpoint of its topic
	GroupAnswersFirst          Mutation = "group-answers-first"           // a publish to a group is answered with its first message
	BatchGroupsFlat            Mutation = "batch-groups-flat"             // a batch is answered with the first message of a group
)

var publishMutations = []Mutation{
	QueryHeadersIgnored, QueryHeadersKept, EncodedDestinationRefused, DestinationCleaned, AnyScheme, UnknownTopicAccepted, PublishDelayIgnored,
	CompoundDelayCut, PublishNotBeforeIgnored, ContentTypeInvented, MethodIgnored, ForwardIgnored, AllForwarded, RetriesIgnored, OneRetryMore,
	DedupIDUnchecked, ContentDedupIgnored, ContentDedupIgnoresHeaders, ContentDedupIgnoresBody, ContentDedupIgnoresURL, PublishWindowDoubled,
	PublishWindowHalved, PublishDedupIgnored, PublishDuplicateDelivered, PublishDuplicateNewID, PublishAnswers200, PublishBodyTrimmed,
	PastTimesWait, RetriedFromOne, RedirectsSucceed, FailureNotLogged, BackoffSlower, BackoffFaster, UnknownMessageEmpty,
	DeliveredForgotten, MessageMethodWrong, CancelNotLogged, CancelDoesNothing, LogsOfAll,
	MessageIDPerAttempt, SignedWithoutBody, SignedForHost, NonRetryableRetried, CallbackAtEnd, FailureCallbackEarly,
	CallbackStatusMissing, CallbackWithoutDLQ, CallbackBodyPlain, CallbackHeadersIgnored, CallbackMethodIgnored, RetryDelayIgnored,
	RetryDelayFromOne, RetryDelaySeconds, RetryAfterIgnored, RetryAfterLoses, HeaderForwardIgnored, TokenForwarded,
	ContentDedupLikeV1, ContentDedupIgnoresType, BatchQueuesReversed, BatchAnswersReversed, BatchStopsAtError, BatchQueueIgnored, EventsWithoutAnswer,
	HeadersNotRedacted, BodyNotRedacted, BinaryBodyAsText, MessagesOldestFirst, MessagesOnePage, TaskNextMissing,
	TaskErrorMissing, TaskReadDiffers, CompletedCancelled, CompletedCounted, SelectorFirstValue, SelectorsWiden,
	UnknownSelectorIgnored, EventsOnePage, LogsAliasEmpty, StateFilterIgnored, OrderIgnored, CursorAtEnd,
	LogsKeyEmpty,
	CollapsedSlashRefused, UserInfoAccepted, QueueTransactionLost, QueuePartitionIgnored, ForwardUnchecked, ForwardUnbounded,
	CallerNotNamed, WebhookWithoutTime, ContentWins, FailedForgetsID, NoAnswerFinal, AttemptTimeoutIgnored,
	CancelAborts, RetryAfterSecondsOnly, RetryAfterUnbounded, CallbackRetriesIgnored, BooleansExact, PublishPathsExact,
	QueryTokenIgnored,
	TopicFirstOnly, GroupAnswersFirst, BatchGroupsFlat,
}

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
	NothingDelivered           Mutation = "nothing-delivered"             // due messages wait for the clock
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
)

var publishMutations = []Mutation{
	QueryHeadersIgnored, QueryHeadersKept, EncodedDestinationRefused, DestinationCleaned, AnyScheme, UnknownTopicAccepted, PublishDelayIgnored,
	CompoundDelayCut, PublishNotBeforeIgnored, ContentTypeInvented, MethodIgnored, ForwardIgnored, AllForwarded, RetriesIgnored, OneRetryMore,
	DedupIDUnchecked, ContentDedupIgnored, ContentDedupIgnoresHeaders, ContentDedupIgnoresBody, ContentDedupIgnoresURL, PublishWindowDoubled,
	PublishWindowHalved, PublishDedupIgnored, PublishDuplicateDelivered, PublishDuplicateNewID, PublishAnswers200, PublishBodyTrimmed,
	NothingDelivered, RetriedFromOne, RedirectsSucceed, FailureNotLogged, BackoffSlower, BackoffFaster, UnknownMessageEmpty,
	DeliveredForgotten, MessageMethodWrong, CancelNotLogged, CancelDoesNothing, LogsOfAll,
}

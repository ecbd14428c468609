package reference

// Defects of transactions.
const (
	TransactionOperationsOptional   Mutation = "transaction-operations-optional"    // a transaction needs no operations
	TransactionPartialBad           Mutation = "transaction-partial-bad"            // the operations before a bad one are carried out
	TransactionItemUnchecked        Mutation = "transaction-item-unchecked"         // an item without payload is null
	TransactionAckUnchecked         Mutation = "transaction-ack-unchecked"          // an ack may lack what it needs
	TransactionFlatErrors           Mutation = "transaction-flat-errors"            // a bad transaction is answered a flat error
	TransactionEmptyRefused         Mutation = "transaction-empty-refused"          // a transaction of nothing is refused
	TransactionIDConstant           Mutation = "transaction-id-constant"            // all transactions have one id
	TransactionIndexPerOperation    Mutation = "transaction-index-per-operation"    // index counts within the operation
	TransactionSnakeCase            Mutation = "transaction-snake-case"             // results have message_id
	TransactionAckBare              Mutation = "transaction-ack-bare"               // results of acks have neither error nor dlq
	TransactionFlatIgnored          Mutation = "transaction-flat-ignored"           // a push without items stores nothing
	TransactionDataRefused          Mutation = "transaction-data-refused"           // data does not stand in for payload
	TransactionRewrites             Mutation = "transaction-rewrites"               // payloads are decoded and encoded again
	TransactionTraceDropped         Mutation = "transaction-trace-dropped"          // traceId is not stored
	TransactionWakesNobody          Mutation = "transaction-wakes-nobody"           // a transaction wakes nobody
	TransactionDuplicateDropped     Mutation = "transaction-duplicate-dropped"      // a duplicate is left out and the rest committed
	TransactionBundleDuplicateFails Mutation = "transaction-bundle-duplicate-fails" // a repeated id in one transaction rolls it back
	TransactionFollowerNewID        Mutation = "transaction-follower-new-id"        // a repeated id in one transaction has an id of its own
	TransactionForgotten            Mutation = "transaction-forgotten"              // what a transaction pushed is no duplicate later
	TransactionAckIgnored           Mutation = "transaction-ack-ignored"            // acks are only said to be carried out
	TransactionGroupIgnored         Mutation = "transaction-group-ignored"          // all acks are for queue mode
	TransactionFirstAckOnly         Mutation = "transaction-first-ack-only"         // acks of the first partition are carried out
	TransactionNackRefused          Mutation = "transaction-nack-refused"           // negative acks roll back
	TransactionDLQNotTold           Mutation = "transaction-dlq-not-told"           // dlq is always false
	TransactionRejectedSucceeds     Mutation = "transaction-rejected-succeeds"      // acks that are refused do not roll back
	TransactionKeepsPushes          Mutation = "transaction-keeps-pushes"           // a rollback leaves what was pushed
	TransactionKeepsAcks            Mutation = "transaction-keeps-acks"             // a rollback leaves what was acknowledged
	TransactionHolderIgnored        Mutation = "transaction-holder-ignored"         // requiredLeases counts before the lease of the partition
	TransactionRequiredIgnored      Mutation = "transaction-required-ignored"       // requiredLeases is ignored
	TransactionFirstRequired        Mutation = "transaction-first-required"         // the first of several requiredLeases counts
)

var transactionMutations = []Mutation{
	TransactionOperationsOptional,
	TransactionPartialBad,
	TransactionItemUnchecked,
	TransactionAckUnchecked,
	TransactionFlatErrors,
	TransactionEmptyRefused,
	TransactionIDConstant,
	TransactionIndexPerOperation,
	TransactionSnakeCase,
	TransactionAckBare,
	TransactionFlatIgnored,
	TransactionDataRefused,
	TransactionRewrites,
	TransactionTraceDropped,
	TransactionWakesNobody,
	TransactionDuplicateDropped,
	TransactionBundleDuplicateFails,
	TransactionFollowerNewID,
	TransactionForgotten,
	TransactionAckIgnored,
	TransactionGroupIgnored,
	TransactionFirstAckOnly,
	TransactionNackRefused,
	TransactionDLQNotTold,
	TransactionRejectedSucceeds,
	TransactionKeepsPushes,
	TransactionKeepsAcks,
	TransactionHolderIgnored,
	TransactionRequiredIgnored,
	TransactionFirstRequired,
}

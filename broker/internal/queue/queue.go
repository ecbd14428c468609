package queue

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// ModeGroup is the reserved consumer group of pops and acks that name none.
const ModeGroup = "__QUEUE_MODE__"

// DefaultPartition is the partition of items that name none.
const DefaultPartition = "Default"

// PushItem is one message to append.
type PushItem struct {
	Queue         string
	Partition     string       // "" means DefaultPartition
	TransactionID string       // "" means the minted message id
	Payload       []byte       // the caller's JSON bytes, kept as they are
	ProducerSub   string       // "" means none
	TraceID       uuid.UUID    // uuid.Nil means none
	Context       TraceContext // zero means none
}

// Status is the outcome of one pushed item, spelled as on the wire.
type Status string

// The statuses of a pushed item.
const (
	Queued    Status = "queued"
	Duplicate Status = "duplicate"
	Buffered  Status = "buffered"
	Failed    Status = "failed"
)

// PushResult answers one PushItem, at the same index.
type PushResult struct {
	MessageID     uuid.UUID // the original's id for a duplicate; uuid.Nil when the original is unknown
	TransactionID string
	Status        Status
}

// PopRequest asks for messages of one queue, of one partition of it, or of every queue in a namespace or task.
type PopRequest struct {
	Queue     string // "" means discovery by Namespace and Task
	Partition string // "" means any partition
	Namespace string
	Task      string

	Batch      int // most messages over all partitions; at least 1
	Partitions int // most partitions claimed; 0 means no cap
	AutoAck    bool
	Wait       time.Duration // how long to wait for a message; 0 answers at once
	Lease      time.Duration // 0 means the queue's lease time
	Group      string        // "" means ModeGroup

	// FromNew and From only seed a group that does not exist yet: from the messages
	// pushed from now on, or from From on. Both zero means from the beginning.
	FromNew bool
	From    time.Time
}

// PopResult holds the messages of one pop, grouped by partition, in order within each. Empty when there are none.
type PopResult struct {
	LeaseID    string // "" with AutoAck
	Group      string
	Partitions []PoppedPartition
}

// PoppedPartition is what one pop took from one partition.
type PoppedPartition struct {
	Queue    string
	Name     string
	ID       uuid.UUID
	Messages []Message
}

// Message is one stored message.
type Message struct {
	ID              uuid.UUID
	TransactionID   string
	TraceID         uuid.UUID // uuid.Nil means none
	ProducerSub     string    // "" means none
	CreatedAt       time.Time
	Context         TraceContext // where it was pushed from; zero means unknown
	DeliveryAttempt int          // 1 at the first delivery to this group
	Payload         []byte
}

// AckStatus is what the consumer says of one message.
type AckStatus uint8

// The instructions an ack can carry.
const (
	Completed AckStatus = iota
	Retry
	Nack
	DeadLetter
)

// AckItem acknowledges one message.
type AckItem struct {
	TransactionID string
	PartitionID   uuid.UUID
	Status        AckStatus
	LeaseID       string // "" means no lease validation
	Error         string // kept with a dead letter
}

// AckResult answers one AckItem, at the same index. Err is nil when the instruction was carried out.
type AckResult struct {
	Err           error
	LeaseReleased bool
	DeadLettered  bool
	Noop          bool
}

// The item errors of an ack. Their texts are part of the wire contract.
var (
	ErrLease            = errors.New("invalid or expired lease")
	ErrAlreadyCommitted = errors.New("already committed")
	ErrUnresolvable     = errors.New("unresolvable transactionId")
	ErrNoConsumer       = errors.New("consumer not found")
	ErrSuperseded       = errors.New("not committed: an earlier message of this partition was not completed")
	ErrDLQRejected      = errors.New("dlq rejected")
)

// Options are a queue's settings. Zero values are not defaults: use DefaultOptions.
type Options struct {
	LeaseTime              time.Duration // 0 leases for ImplicitLeaseTime
	RetryLimit             int
	DeadLetterQueue        bool
	DLQAfterMaxRetries     bool
	DelayedProcessing      time.Duration
	WindowBuffer           time.Duration
	MinPopWait             time.Duration
	RetentionEnabled       bool
	Retention              time.Duration
	CompletedRetention     time.Duration
	MaxWaitTime            time.Duration
	EncryptionEnabled      bool
	DedupWindow            time.Duration
	Priority, MaxSize, TTL int
	RetryDelay             int
}

// DefaultOptions are the options of a queue that configure made and named no option of.
// A queue created by a push or a pop has ImplicitLeaseTime instead of the lease time here.
func DefaultOptions() Options {
	return Options{
		LeaseTime:          300 * time.Second,
		RetryLimit:         3,
		DeadLetterQueue:    true,
		DLQAfterMaxRetries: true,
		DedupWindow:        3600 * time.Second,
	}
}

// ImplicitLeaseTime is the lease time of a queue created by a push or a pop.
const ImplicitLeaseTime = 60 * time.Second

// Queue is a queue's identity and settings.
type Queue struct {
	ID        uuid.UUID
	Name      string
	Namespace string
	Task      string
	CreatedAt time.Time
	Options   Options
}

// Counts are message counts. Pending is measured against the slowest consumer group.
type Counts struct {
	Total, Pending, Processing, Completed, DeadLetter int64
}

// Stats is one row of the queue list.
type Stats struct {
	Queue
	Partitions    int64
	RetainedBytes int64
	Segments      int64
	Messages      Counts
}

// PartitionStats is one partition of a queue's detail.
type PartitionStats struct {
	ID        uuid.UUID
	Name      string
	CreatedAt time.Time
	Counts    Counts
	Oldest    time.Time // zero means empty
	Newest    time.Time
}

// Detail is one queue with its partitions.
type Detail struct {
	Stats
	PartitionStats []PartitionStats
}

// Lease is what an extension answers: how many (partition, group) leases were renewed, and the earliest new expiry.
type Lease struct {
	Renewed   int
	ExpiresAt time.Time // zero when Renewed is 0
}

// Database is what a health check saw of PostgreSQL.
type Database struct {
	Version                 string
	Fsync                   string
	SynchronousCommit       string
	SynchronousStandbyNames string
}

// Errors of the engine's methods. ErrUnavailable wraps every failure to reach PostgreSQL in time.
var (
	ErrUnavailable   = errors.New("database unavailable")
	ErrQueueNotFound = errors.New("queue not found")
	ErrStopped       = errors.New("broker is stopping")
)

package reference

// Schedules.
const (
	CronAliasesAccepted    Mutation = "cron-aliases-accepted"     // @daily and TZ= are understood
	CronSecondsAccepted    Mutation = "cron-seconds-accepted"     // a field for seconds is ignored
	LongCronAccepted       Mutation = "long-cron-accepted"        // expressions may be of any length
	NeverCronAccepted      Mutation = "never-cron-accepted"       // dates that never come are accepted
	SundayIsZeroOnly       Mutation = "sunday-is-zero-only"       // day 7 of the week never comes
	CronDaysBoth           Mutation = "cron-days-both"            // days of the month and of the week must both match
	CronZoneIgnored        Mutation = "cron-zone-ignored"         // every expression is in UTC
	CronTickTwice          Mutation = "cron-tick-twice"           // a time that the clock shows twice ticks twice
	CronGapSkipped         Mutation = "cron-gap-skipped"          // a time that the clock skips does not tick
	TicksEarly             Mutation = "ticks-early"               // ticks come ten minutes early
	ScheduleNotNamed       Mutation = "schedule-not-named"        // deliveries do not tell their schedule
	MissedTicksAll         Mutation = "missed-ticks-all"          // each tick that has passed is made up for
	MissedTicksNone        Mutation = "missed-ticks-none"         // none is
	ScheduleMerged         Mutation = "schedule-merged"           // what a replacement does not say stays
	ScheduleAdded          Mutation = "schedule-added"            // a replacement stands beside the schedule
	ScheduleQueueIgnored   Mutation = "schedule-queue-ignored"    // messages of schedules go past their delivery queue
	ScheduleFlowIgnored    Mutation = "schedule-flow-ignored"     // messages of schedules have no flow control
	ScheduleTopicFrozen    Mutation = "schedule-topic-frozen"     // a schedule keeps the endpoints that its topic had
	NextTickHidden         Mutation = "next-tick-hidden"          // schedules do not tell their next tick
	LastTickHidden         Mutation = "last-tick-hidden"          // schedules do not tell their last tick
	ScheduleStatesStand    Mutation = "schedule-states-stand"     // messages of schedules are always in progress
	ScheduleForeignHeaders Mutation = "schedule-foreign-headers"  // schedules show headers that are not forwarded
	OldestScheduleListed   Mutation = "oldest-schedule-listed"    // only one schedule is listed
	ScheduleDeletionTakes  Mutation = "schedule-deletion-takes"   // a deleted schedule takes its messages with it
	DeletedScheduleTicks   Mutation = "deleted-schedule-ticks"    // a deleted schedule goes on
	PauseOnlyTold          Mutation = "pause-only-told"           // a paused schedule goes on
	PauseHidden            Mutation = "pause-hidden"              // a paused schedule does not say so
	PauseToggles           Mutation = "pause-toggles"             // pausing again resumes
	ResumeMakesUp          Mutation = "resume-makes-up"           // a resumed schedule makes up for what it missed
	ResumeOnlyTold         Mutation = "resume-only-told"          // a resumed schedule stands still
	PauseByPostIgnored     Mutation = "pause-by-post-ignored"     // POST pauses nothing
	ResumeByPostIgnored    Mutation = "resume-by-post-ignored"    // POST resumes nothing
	ScheduleV1Bare         Mutation = "schedule-v1-bare"          // version 1 shows no content
	ScheduleV1TopicBare    Mutation = "schedule-v1-topic-bare"    // version 1 does not show the topic of a schedule
	OldestScheduleListedV1 Mutation = "oldest-schedule-listed-v1" // version 1 lists one schedule only
	DeletedScheduleTicksV1 Mutation = "deleted-schedule-ticks-v1" // a schedule that version 1 deleted goes on
)

var scheduleMutations = []Mutation{
	CronAliasesAccepted, CronSecondsAccepted, LongCronAccepted, NeverCronAccepted, SundayIsZeroOnly, CronDaysBoth, CronZoneIgnored, CronTickTwice,
	CronGapSkipped, TicksEarly, ScheduleNotNamed, MissedTicksAll, MissedTicksNone, ScheduleMerged, ScheduleAdded,
	ScheduleQueueIgnored, ScheduleFlowIgnored, ScheduleTopicFrozen, NextTickHidden, LastTickHidden, ScheduleStatesStand, ScheduleForeignHeaders, OldestScheduleListed,
	ScheduleDeletionTakes, DeletedScheduleTicks, PauseOnlyTold, PauseHidden, PauseToggles, ResumeMakesUp, ResumeOnlyTold, PauseByPostIgnored,
	ResumeByPostIgnored, ScheduleV1Bare, ScheduleV1TopicBare, OldestScheduleListedV1, DeletedScheduleTicksV1,
}

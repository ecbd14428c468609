package reference

// Topics.
const (
	EmptyTopicsHidden         Mutation = "empty-topics-hidden"          // topics without endpoints are not listed
	TopicNamesUnchecked       Mutation = "topic-names-unchecked"        // topics may have any name
	TopicRecreated            Mutation = "topic-recreated"              // a name that is taken is given again
	TopicIDsUnknown           Mutation = "topic-ids-unknown"            // topics are found by their names only
	RenameCopies              Mutation = "rename-copies"                // a renamed topic is another topic
	TopicDeletionEmpties      Mutation = "topic-deletion-empties"       // a deleted topic loses its endpoints and stays
	EndpointsListedByURL      Mutation = "endpoints-listed-by-url"      // of endpoints with one url only one is listed
	EndpointByIDOnly          Mutation = "endpoint-by-id-only"          // an endpoint cannot be added to a topic by its name
	UnknownEndpointFirst      Mutation = "unknown-endpoint-first"       // an unknown endpoint is another one
	EndpointMovesMessages     Mutation = "endpoint-moves-messages"      // messages that wait follow their endpoint
	EndpointTakesMessages     Mutation = "endpoint-takes-messages"      // messages that wait go with their endpoint
	GroupListBare             Mutation = "group-list-bare"              // groups are listed without endpoints
	GroupNeverUpdated         Mutation = "group-never-updated"          // updatedAt is createdAt
	GroupHeadersIgnored       Mutation = "group-headers-ignored"        // the headers of a group have no effect
	GroupHeadersWin           Mutation = "group-headers-win"            // they replace those of the message
	GroupHeadersMerged        Mutation = "group-headers-merged"         // headers that are not given again stay
	DeleteUnknownGroupRefused Mutation = "delete-unknown-group-refused" // deleting an unknown group is answered 404
	UpsertByNameOnly          Mutation = "upsert-by-name-only"          // an endpoint with a known url is added again
	UpsertByURLOnly           Mutation = "upsert-by-url-only"           // an endpoint with a known name is added again
	TooManyEndpointsKept      Mutation = "too-many-endpoints-kept"      // of too many endpoints those that fit in are kept
	RemovesByNameOnly         Mutation = "removes-by-name-only"         // endpoints cannot be removed by their url
	EmptyGroupStays           Mutation = "empty-group-stays"            // a group stays without endpoints
	RemovedEndpointReplaced   Mutation = "removed-endpoint-replaced"    // messages that wait for an endpoint that is removed go to another
)

var topicMutations = []Mutation{
	EmptyTopicsHidden, TopicNamesUnchecked, TopicRecreated, TopicIDsUnknown, RenameCopies, TopicDeletionEmpties, EndpointsListedByURL,
	EndpointByIDOnly, UnknownEndpointFirst, EndpointMovesMessages, EndpointTakesMessages, GroupListBare, GroupNeverUpdated,
	GroupHeadersIgnored, GroupHeadersWin, GroupHeadersMerged, DeleteUnknownGroupRefused, UpsertByNameOnly, UpsertByURLOnly,
	TooManyEndpointsKept, RemovesByNameOnly, EmptyGroupStays, RemovedEndpointReplaced,
}

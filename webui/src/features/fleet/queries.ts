import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useLiveAgents } from '../../api/agents';
import { dataOf, rest } from '../../api/client';
import { graphql, mutate, query } from '../../api/graphql';

export const agentQuery = graphql(`
  query ($id: String!) {
    agent(agent_id: $id) {
      id status status_changed schedulable scaling_group architecture addr version runtime tier enforcement location
      max_kernels available_slots occupied_slots first_contact lost_at devices
      compute_containers { id session_id status attached_devices occupied_slots }
    }
  }
`);

export const setSchedulable = graphql(`
  mutation ($id: String!, $schedulable: Boolean!) {
    modify_agent(id: $id, props: { schedulable: $schedulable }) { ok msg }
  }
`);

/** All agents; the browser's cache asks with the tag of what it has, so that an unchanged fleet costs a line. */
export function useFleet() {
  return useQuery({
    queryKey: ['fleet'],
    queryFn: ({ signal }) => dataOf(rest.GET('/resource/fleet', { signal })),
    refetchInterval: useLiveAgents(),
  });
}

export function useAgent(id: string) {
  return useQuery({
    queryKey: ['agent', id],
    queryFn: async ({ signal }) => (await query(agentQuery, { id }, { signal })).agent ?? null,
    refetchInterval: useLiveAgents(),
  });
}

export type AgentDetails = NonNullable<
  Awaited<ReturnType<NonNullable<ReturnType<typeof useAgent>['refetch']>>>['data']
>;

export type Span = 'hour' | 'day';

export function useAgentHistory(id: string, span: Span) {
  return useQuery({
    queryKey: ['agent', id, 'history', span],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/resource/agents/{agent_id}/metrics/history', {
          params: { path: { agent_id: id }, query: { span } },
          signal,
        }),
      ),
    refetchInterval: span === 'hour' ? 5_000 : 60_000,
  });
}

/** Lets an agent take sessions, or not. */
export function useSetSchedulable(id: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (schedulable: boolean) => mutate(setSchedulable, { id, schedulable }),
    onSuccess: () => Promise.all([['agent', id], ['fleet']].map((queryKey) => client.invalidateQueries({ queryKey }))),
  });
}

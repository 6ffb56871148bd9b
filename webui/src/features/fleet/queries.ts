import { keepPreviousData, useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useLiveAgents } from '../../api/agents';
import { dataOf, rest } from '../../api/client';
import type { components } from '../../api/generated/rest';
import { graphql, mutate, query } from '../../api/graphql';

export const agentQuery = graphql(`
  query ($id: String!) {
    agent(agent_id: $id) {
      id status status_changed schedulable scaling_group architecture addr version runtime tier enforcement location
      max_kernels available_slots occupied_slots first_contact lost_at devices compute_plugins live_stat
      compute_containers { id session_id status attached_devices occupied_slots }
    }
  }
`);

export const setSchedulable = graphql(`
  mutation ($id: String!, $schedulable: Boolean!) {
    modify_agent(id: $id, props: { schedulable: $schedulable }) { ok msg }
  }
`);

export const moveAgent = graphql(`
  mutation ($id: String!, $group: String!) {
    modify_agent(id: $id, props: { scaling_group: $group }) { ok msg }
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

/** Returns what marks an agent, and the fleet that it is in, as out of date. */
function useAgentRefresh(id: string) {
  const client = useQueryClient();
  return () => Promise.all([['agent', id], ['fleet']].map((queryKey) => client.invalidateQueries({ queryKey })));
}

/** Lets an agent take sessions, or not. */
export function useSetSchedulable(id: string) {
  const refresh = useAgentRefresh(id);
  return useMutation({
    mutationFn: (schedulable: boolean) => mutate(setSchedulable, { id, schedulable }),
    onSuccess: refresh,
  });
}

/** Moves an agent to another resource group. */
export function useMoveAgent(id: string) {
  const refresh = useAgentRefresh(id);
  return useMutation({ mutationFn: (group: string) => mutate(moveAgent, { id, group }), onSuccess: refresh });
}

// ---- devices

/** What can be done with the devices of a plugin. `devices` is what the agent reports of them: it changes with them. */
export function useDeviceOptions(id: string, plugin: string, devices: string) {
  return useQuery({
    queryKey: ['agent', id, 'operations', plugin, devices],
    queryFn: ({ signal }) =>
      dataOf(
        rest.GET('/resource/agents/{agent_id}/devices/{device_name}/operations', {
          params: { path: { agent_id: id, device_name: plugin } },
          signal,
        }),
      ),
    enabled: plugin !== '',
    placeholderData: (data, last) => (last?.queryKey[3] === plugin ? keepPreviousData(data) : undefined),
  });
}

/** Operates a device. Returns the id of the device, or of the one that was made of it. */
export function useOperateDevice(id: string, plugin: string) {
  const refresh = useAgentRefresh(id);
  return useMutation({
    mutationFn: async (body: components['schemas']['DeviceOperationBody']) =>
      (
        await dataOf(
          rest.POST('/resource/agents/{agent_id}/devices/{device_name}/operations', {
            params: { path: { agent_id: id, device_name: plugin } },
            body,
          }),
        )
      ).device_id,
    onSuccess: refresh,
  });
}

// ---- the watcher

/** How the service of an agent is, as its watcher says. Not every agent has one, so nobody asks unasked. */
export function useWatcher(id: string, asks: boolean) {
  return useQuery({
    queryKey: ['watcher', id],
    queryFn: async ({ signal }) =>
      (await dataOf(rest.GET('/resource/watcher', { params: { query: { agent_id: id } }, signal })))['agent-status'],
    enabled: asks,
    retry: false,
  });
}

export type WatcherAct = 'start' | 'stop' | 'restart';

export function useWatcherAct(id: string) {
  const client = useQueryClient();
  const refresh = useAgentRefresh(id);
  return useMutation({
    mutationFn: (act: WatcherAct) => rest.POST(`/resource/watcher/agent/${act}`, { body: { agent_id: id } }),
    onSettled: () => Promise.all([refresh(), client.invalidateQueries({ queryKey: ['watcher', id] })]),
  });
}

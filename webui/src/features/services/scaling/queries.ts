import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { dataOf, rest } from '../../../api/client';
import { serviceKeys } from '../queries';
import { pollIntervalOf } from '../rules';

const at = (id: string) => ({ path: { e: id } });
const ofRule = (id: string, rule: string) => ({ path: { e: id, r: rule } });

export function useScaling(id: string, status: string) {
  return useQuery({
    queryKey: [...serviceKeys.one(id), 'scaling'],
    queryFn: ({ signal }) => dataOf(rest.GET('/services/{e}/scaling', { params: at(id), signal })),
    refetchInterval: pollIntervalOf(status),
  });
}

function useScalingChange<T>(mutationFn: (input: T) => Promise<unknown>) {
  const client = useQueryClient();
  return useMutation({ mutationFn, onSettled: () => client.invalidateQueries({ queryKey: serviceKeys.all }) });
}

/** Begins autoscaling, or changes its bounds and target. */
export const useSetScaling = (id: string) =>
  useScalingChange((body: Record<string, unknown>) =>
    dataOf(rest.PATCH('/services/{e}/scaling', { params: at(id), body })),
  );

/** Ends autoscaling with all rules. */
export const useEndScaling = (id: string) =>
  useScalingChange((_: undefined) => dataOf(rest.DELETE('/services/{e}/scaling', { params: at(id) })));

/** Adds a rule, or changes the one with an id. */
export const useSaveRule = (id: string, rule: string | null) =>
  useScalingChange((body: Record<string, unknown>) =>
    rule === null
      ? dataOf(rest.POST('/services/{e}/scaling/rules', { params: at(id), body: body as never }))
      : dataOf(rest.PATCH('/services/{e}/scaling/rules/{r}', { params: ofRule(id, rule), body: body as never })),
  );

export const useRemoveRule = (id: string) =>
  useScalingChange((rule: string) =>
    dataOf(rest.DELETE('/services/{e}/scaling/rules/{r}', { params: ofRule(id, rule) })),
  );

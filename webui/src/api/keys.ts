/** Keys of the query cache. Events invalidate by their first parts, so a key begins with what it is about. */
export const keys = {
  login: ['login'] as const,
  me: ['me'] as const,
  announcement: ['announcement'] as const,
  managerStatus: ['manager-status'] as const,
  slotDetails: ['slot-details'] as const,
  sessions: ['sessions'] as const,
  fleet: ['fleet'] as const,
  agents: ['agent'] as const,
  session: (id: string) => ['session', id] as const,
  quota: (group: string) => ['quota', group] as const,
};

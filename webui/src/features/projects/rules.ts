import type { Role } from '../../api/me';

/** What somebody may do in a project; the manager has the last word. */
export interface Rights {
  /** Sees its members. */
  sees: boolean;
  /** Lets people in and out. */
  changes: boolean;
  /** Says who administrates it. */
  appoints: boolean;
}

/** Returns the rights of a role in a project; `isMine`: the person administrates it. */
export function rightsOf(role: Role, isMine: boolean): Rights {
  const isAdministrator = role === 'admin' || role === 'superadmin';
  return {
    sees: isAdministrator || role === 'monitor' || isMine,
    changes: isAdministrator || isMine,
    appoints: isAdministrator,
  };
}

/** Returns whether somebody with these rights may remove a member: administrators of a project do not remove each other. */
export function mayRemove(rights: Rights, member: { isAdmin: boolean }, isSelf: boolean): boolean {
  return rights.changes && (rights.appoints || !member.isAdmin || isSelf);
}

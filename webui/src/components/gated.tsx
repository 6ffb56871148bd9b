import type { ComponentType } from 'react';
import type { Role } from '../api/me';
import { RoleGate } from './RoleGate';

/** Returns a page that is for some roles; for others it is not even mounted, so that it asks the server for nothing. */
export function gated(roles: readonly Role[], Content: ComponentType): ComponentType {
  return function Gated() {
    return (
      <RoleGate roles={roles}>
        <Content />
      </RoleGate>
    );
  };
}

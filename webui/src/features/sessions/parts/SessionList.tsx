import { slotsOf } from '../../../api/filters';
import { AnchorLink } from '../../../components/AnchorLink';
import { RelativeTime } from '../../../components/RelativeTime';
import { Slots } from '../../../components/Slots';
import type { SessionRow } from '../queries';
import { waitOf } from '../rules';
import classes from './SessionList.module.css';
import { SessionStatus } from './SessionStatus';
import { WaitReason } from './WaitReason';

/** A few sessions, each in a line or two; the reason of a wait in full. */
export function SessionList({ sessions }: { sessions: readonly SessionRow[] }) {
  return (
    <ul className={classes.list}>
      {sessions.map((session) => {
        const wait = waitOf(session);
        return (
          <li key={session.id} className={classes.item}>
            <span className={classes.line}>
              <AnchorLink to="/sessions/$id" params={{ id: session.id ?? '' }} fw={500}>
                {session.name}
              </AnchorLink>
              <SessionStatus status={session.status} />
              <span className={classes.time}>
                <RelativeTime at={session.created_at} />
              </span>
            </span>
            {wait ? <WaitReason wait={wait} isLong /> : <Slots amounts={slotsOf(session.requested_slots)} />}
          </li>
        );
      })}
    </ul>
  );
}

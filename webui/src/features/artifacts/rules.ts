import type { components } from '../../api/generated/rest';
import type { Tone } from '../../components/StatusBadge';

export type Artifact = components['schemas']['ArtifactItem'];
export type Revision = Artifact['revisions'][number];

const tones: Record<string, Tone> = {
  SCANNED: 'idle',
  PULLING: 'busy',
  PULLED: 'busy',
  AVAILABLE: 'good',
};

/** The look of a status; what an import failed by is in `status_info`, and the revision is as before. */
export const toneOf = (revision: Pick<Revision, 'status' | 'status_info'>): Tone =>
  revision.status === 'SCANNED' && revision.status_info ? 'bad' : (tones[revision.status] ?? 'idle');

/** Whether an import is under way, so that the page has to look again. */
export const isMoving = (revision: Pick<Revision, 'status'>): boolean =>
  ['PULLING', 'PULLED'].includes(revision.status);

/** Whether the files of a revision can be imported, for the first time, after a failure, or anew. */
export const isImportable = (revision: Pick<Revision, 'status' | 'is_outdated'>): boolean =>
  revision.status === 'SCANNED' || (revision.status === 'AVAILABLE' && revision.is_outdated);

/** How far an import is, in percent; null where the size is not known. */
export function percentOf(revision: Pick<Revision, 'progress'>): number | null {
  const progress = revision.progress;
  if (!progress || progress.total <= 0) return null;
  return Math.min(100, Math.round((progress.current / progress.total) * 100));
}

/** The reference by which a session mounts a revision. */
export const mountOf = (artifact: string, version: string): string => `artifact:${artifact}@${version}`;

/** The audiences of an artifact: what its registry says, everybody, nobody but superadmins, or some. */
export type Audience = 'registry' | 'everyone' | 'nobody' | 'some';

export function audienceOf(viewers: readonly string[] | null): Audience {
  if (viewers === null) return 'registry';
  if (viewers.length === 0) return 'nobody';
  return viewers.length === 1 && viewers[0] === 'everyone' ? 'everyone' : 'some';
}

export function viewersOf(audience: Audience, names: readonly string[]): string[] | null {
  if (audience === 'registry') return null;
  if (audience === 'everyone') return ['everyone'];
  return audience === 'nobody' ? [] : [...names];
}

/** Whether a text names a viewer: a domain, a project or a user. */
export const isViewer = (text: string): boolean => /^(domain|group|user):\S+$/.test(text);

/** How many revisions can be used, of how many. */
export function countsOf(artifact: Pick<Artifact, 'revisions'>): { available: number; total: number } {
  const available = artifact.revisions.filter(({ status }) => status === 'AVAILABLE').length;
  return { available, total: artifact.revisions.length };
}

/** The size of the largest revision, in bytes; null where none is known. */
export function sizeOf(artifact: Pick<Artifact, 'revisions'>): number | null {
  const sizes = artifact.revisions.map(({ size }) => size).filter((size) => size !== null);
  return sizes.length === 0 ? null : Math.max(...sizes);
}

/** Returns the address of a file. Throws for addresses that are not http or https. */
export function linkOf(url: string | null | undefined): string {
  const address = new URL(url ?? '');
  if (address.protocol !== 'http:' && address.protocol !== 'https:') throw new Error(`no address of a file: ${url}`);
  return address.href;
}

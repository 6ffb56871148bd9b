import { Problem, problemFrom } from '../../api/problems';

/** A chosen file, with its path in the artifact. */
export interface UploadedFile {
  path: string;
  file: File;
}

const parallel = 4;

/** Returns the paths of chosen files: those of a directory are relative to it. A file chosen again replaces the first. */
export function filesOf(chosen: readonly File[]): UploadedFile[] {
  const byPath = new Map(
    chosen.map(
      (file) => [(file.webkitRelativePath || file.name).split('/').slice(1).join('/') || file.name, file] as const,
    ),
  );
  return [...byPath].map(([path, file]) => ({ path, file })).sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** Sends a whole file to an address that the storage has signed. Throws Problem. */
async function put(url: string, file: File): Promise<void> {
  let response: Response;
  try {
    // A slice has no type, which the signature would not cover.
    response = await fetch(new Request(url, { method: 'PUT', body: file.slice(), credentials: 'omit' }));
  } catch {
    throw new Problem({ type: 'about:offline', title: 'offline', status: 0 });
  }
  if (!response.ok) throw problemFrom(response.status, await response.json().catch(() => null), response.headers);
}

/** Sends files to their addresses, a few at a time; `onSent` tells how many bytes are there. Ends with the first failure. */
export async function putAll(
  files: readonly UploadedFile[],
  addresses: readonly { path: string; url: string }[],
  onSent: (bytes: number) => void,
): Promise<void> {
  const waiting = [...addresses];
  let sent = 0;
  let isBroken = false;
  const work = async () => {
    for (let next = waiting.shift(); next !== undefined && !isBroken; next = waiting.shift()) {
      const { path, url } = next;
      const chosen = files.find((each) => each.path === path);
      if (chosen === undefined) continue;
      await put(url, chosen.file);
      sent += chosen.file.size;
      onSent(sent);
    }
  };
  const workers = Array.from({ length: parallel }, () =>
    work().catch((error) => {
      isBroken = true;
      throw error;
    }),
  );
  await Promise.all(workers);
}

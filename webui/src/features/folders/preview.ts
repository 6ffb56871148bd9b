import { appendOutput, imageOf, type Output } from '../../components/outputs';

export type PreviewKind = 'image' | 'notebook' | 'table' | 'text';

const images: Record<string, string> = {
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
  svg: 'image/svg+xml',
};

function extensionOf(name: string): string {
  return /\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? '';
}

/** Returns how a file is shown, by its name. */
export function kindOf(name: string): PreviewKind {
  const extension = extensionOf(name);
  if (extension in images) return 'image';
  if (extension === 'ipynb') return 'notebook';
  return extension === 'csv' || extension === 'tsv' ? 'table' : 'text';
}

/** Returns the type of an image by its name; the server's word for it is not asked. */
export function imageTypeOf(name: string): string {
  return images[extensionOf(name)] ?? 'application/octet-stream';
}

/** The most bytes that are fetched for a preview; of text the rest is left out, others are not shown then. */
export const mostBytes: Record<PreviewKind, number> = {
  image: 16 << 20,
  notebook: 16 << 20,
  table: 1 << 20,
  text: 1 << 20,
};

/** Returns bytes as text; null for what is none. A character that is cut off at the end is left out. */
export function textOf(bytes: Uint8Array): string | null {
  if (bytes.subarray(0, 8192).includes(0)) return null;
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes, { stream: true });
  } catch {
    return null;
  }
}

/** Returns up to `most` rows of text with separators (RFC 4180), and whether there are more. */
export function rowsOf(text: string, separator: string, most: number): { rows: string[][]; hasMore: boolean } {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = '';
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const letter = text.charAt(at);
    if (isQuoted) {
      if (letter !== '"') field += letter;
      else if (text.charAt(at + 1) === '"') {
        field += '"';
        at += 1;
      } else isQuoted = false;
    } else if (letter === '"' && field === '') isQuoted = true;
    else if (letter === separator) {
      row.push(field);
      field = '';
    } else if (letter === '\n') {
      row.push(field.endsWith('\r') ? field.slice(0, -1) : field);
      rows.push(row);
      if (rows.length === most) return { rows, hasMore: at + 1 < text.length };
      row = [];
      field = '';
    } else field += letter;
  }
  if (field !== '' || row.length > 0) rows.push([...row, field]);
  return { rows, hasMore: false };
}

export interface NotebookCell {
  isCode: boolean;
  source: string;
  outputs: Output[];
}

function joined(value: unknown): string {
  if (Array.isArray(value)) return value.filter((line) => typeof line === 'string').join('');
  return typeof value === 'string' ? value : '';
}

function outputOf(output: Record<string, unknown>): Output | null {
  if (output.output_type === 'stream') {
    return { kind: 'text', stream: output.name === 'stderr' ? 'stderr' : 'stdout', text: joined(output.text) };
  }
  if (output.output_type === 'error') {
    const lines = Array.isArray(output.traceback) ? output.traceback : [output.ename, output.evalue];
    return { kind: 'text', stream: 'stderr', text: `${lines.filter((line) => typeof line === 'string').join('\n')}\n` };
  }
  const data = (typeof output.data === 'object' && output.data !== null ? output.data : {}) as Record<string, unknown>;
  for (const type of ['image/svg+xml', 'image/png', 'image/jpeg', 'image/gif']) {
    const image = data[type] === undefined ? null : imageOf(type, joined(data[type]));
    if (image !== null) return image;
  }
  if (data['text/html'] !== undefined) return { kind: 'html', html: joined(data['text/html']) };
  const text = joined(data['text/plain']);
  return text === '' ? null : { kind: 'text', stream: 'stdout', text: `${text}\n` };
}

/** Returns the cells of a notebook (nbformat 4); null for anything else. */
export function notebookOf(text: string): NotebookCell[] | null {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch {
    return null;
  }
  const cells = (document as { cells?: unknown } | null)?.cells;
  if (!Array.isArray(cells)) return null;
  return cells.slice(0, 2000).flatMap((cell: unknown) => {
    if (typeof cell !== 'object' || cell === null) return [];
    const { cell_type, source, outputs } = cell as Record<string, unknown>;
    const shown = (Array.isArray(outputs) ? outputs : [])
      .filter((output): output is Record<string, unknown> => typeof output === 'object' && output !== null)
      .map(outputOf)
      .filter((output) => output !== null)
      .reduce(appendOutput, [] as Output[]);
    return [{ isCode: cell_type === 'code', source: joined(source), outputs: shown }];
  });
}

/** Reads at most `most` bytes of a reply; the rest is not fetched. */
export async function readStart(
  response: Response,
  most: number,
): Promise<{ bytes: Uint8Array<ArrayBuffer>; isCut: boolean }> {
  const reader = response.body?.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  while (reader !== undefined && size <= most) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
  }
  await reader?.cancel();
  const bytes = new Uint8Array(Math.min(size, most));
  let at = 0;
  for (const part of parts) {
    bytes.set(part.subarray(0, bytes.length - at), at);
    at += Math.min(part.length, bytes.length - at);
  }
  return { bytes, isCut: size > most };
}

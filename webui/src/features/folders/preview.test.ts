import { describe, expect, it } from 'vitest';
import { imageTypeOf, kindOf, notebookOf, readStart, rowsOf, textOf } from './preview';

const bytes = (text: string) => new TextEncoder().encode(text);

describe('previews', () => {
  it.each([
    ['a.PNG', 'image'],
    ['a.ipynb', 'notebook'],
    ['a.tsv', 'table'],
    ['Makefile', 'text'],
    ['a.html', 'text'],
  ])('shows %s as %s', (name, kind) => expect(kindOf(name)).toBe(kind));
  it('takes the type of an image from its name', () => expect(imageTypeOf('a.svg')).toBe('image/svg+xml'));
  it('tells text from what is none', () => {
    expect(textOf(bytes('né'))).toBe('né');
    expect(textOf(bytes('né').subarray(0, 2))).toBe('n'); // cut off within a character
    expect(textOf(new Uint8Array([1, 0, 2]))).toBeNull();
    expect(textOf(new Uint8Array([0xff, 0xfe, 0x41]))).toBeNull();
  });
  it('reads tables', () => {
    expect(rowsOf('a,"b ""c"", d"\r\n1,\n"x\ny",2', ',', 9)).toEqual({
      rows: [
        ['a', 'b "c", d'],
        ['1', ''],
        ['x\ny', '2'],
      ],
      hasMore: false,
    });
    expect(rowsOf('a\nb\nc', ',', 2)).toEqual({ rows: [['a'], ['b']], hasMore: true });
    expect(rowsOf('', ',', 2)).toEqual({ rows: [], hasMore: false });
  });
  it('reads notebooks, and nothing else', () => {
    const notebook = {
      cells: [
        { cell_type: 'markdown', source: ['# <b>t</b>\n', 'x'] },
        {
          cell_type: 'code',
          source: '1',
          outputs: [
            { output_type: 'stream', name: 'stdout', text: ['a', 'b'] },
            { output_type: 'display_data', data: { 'text/html': '<p>', 'image/png': 'AA\nAA' } },
            { output_type: 'execute_result', data: { 'text/html': ['<p>', '</p>'] } },
            { output_type: 'error', traceback: ['x', 'y'] },
            { output_type: 'display_data', data: { 'application/javascript': 'x()' } },
            null,
          ],
        },
        'nonsense',
      ],
    };
    expect(notebookOf(JSON.stringify(notebook))).toEqual([
      { isCode: false, source: '# <b>t</b>\nx', outputs: [] },
      {
        isCode: true,
        source: '1',
        outputs: [
          { kind: 'text', stream: 'stdout', text: 'ab' },
          { kind: 'image', url: 'data:image/png;base64,AAAA' },
          { kind: 'html', html: '<p></p>' },
          { kind: 'text', stream: 'stderr', text: 'x\ny\n' },
        ],
      },
    ]);
    for (const text of ['', '[]', 'null', '{"cells":7}']) expect(notebookOf(text)).toBeNull();
  });
  it('fetches no more than it shows', async () => {
    let pulled = 0;
    const body = new ReadableStream({
      pull(controller) {
        pulled += 1;
        controller.enqueue(bytes('abcd'));
      },
    });
    const { bytes: start, isCut } = await readStart(new Response(body), 6);
    expect(new TextDecoder().decode(start)).toBe('abcdab');
    expect(isCut).toBe(true);
    expect(pulled).toBeLessThan(5);
    expect(await readStart(new Response('ab'), 6)).toMatchObject({ isCut: false, bytes: bytes('ab') });
  });
});

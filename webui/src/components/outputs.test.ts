import { describe, expect, it } from 'vitest';
import { withoutEscapes } from '../api/text';
import { appendOutput, imageOf, plainHtml } from './outputs';

describe('plainHtml', () => {
  it.each([
    ['<table><tr><td onclick="x()" style="color:red" colspan="2">1</td></tr></table>', '<td colspan="2">1</td>'],
    ['<p>a</p><script>x()</script><b>b</b>', '<p>a</p><b>b</b>'],
    ['<custom-tag><i>kept</i></custom-tag>', '<i>kept</i>'],
    ['<img src="https://evil.example/x.png"><p>x</p>', '<p>x</p>'],
    ['<img src="data:text/html,<script>">', ''],
    ['<img src="data:image/png;base64,AAAA" onerror=x()>', '<img src="data:image/png;base64,AAAA">'],
    ['<a href="javascript:x()">link</a>', '<a>link</a>'],
    ['a style= b', 'a style= b'],
    [
      '<style>body{display:none}</style><object data="//evil.example"></object><form action="/"><button>x</button></form>',
      '',
    ],
  ])('of %s', (html, expected) => expect(plainHtml(html).html).toContain(expected));
  it.each([
    '<script>x()</script>',
    '<p onclick=x()>a</p>',
    '<svg><script>x()</script></svg>',
    '<img src=x onerror="x()">',
  ])('leaves nothing that runs of %s', (html) => {
    const plain = plainHtml(html);
    expect(plain.html).not.toMatch(/script|on\w+=/);
    expect(plain.hadScripts || html.includes('svg')).toBe(true);
  });
  it('reads tags that never end in a moment', () => {
    // A file of a shared folder, or a program, may be made so: it took minutes, in which the tab did nothing else.
    const began = performance.now();
    plainHtml('<a'.repeat(100_000));
    expect(performance.now() - began).toBeLessThan(2000);
  });
  it('survives deep nesting', () => expect(plainHtml('<div>'.repeat(5000)).html.length).toBeLessThan(2000));
});

describe('outputs', () => {
  it('shows images by data alone', () => {
    expect(imageOf('image/png', 'data:image/png;base64,AA')).toEqual({
      kind: 'image',
      url: 'data:image/png;base64,AA',
    });
    expect(imageOf('image/png', 'data:text/html,x')).toBeNull();
    expect(imageOf('application/pdf', 'AA')).toBeNull();
    expect(imageOf('image/svg+xml', '<svg a="#"/>')).toEqual({
      kind: 'image',
      url: 'data:image/svg+xml,%3Csvg%20a%3D%22%23%22%2F%3E',
    });
  });
  it('joins text of one stream', () => {
    const out = (text: string) => ({ kind: 'text', stream: 'stdout', text }) as const;
    const err = { kind: 'text', stream: 'stderr', text: 'e' } as const;
    expect([out('a'), out('b'), err, out('c')].reduce(appendOutput, [] as never[])).toEqual([out('ab'), err, out('c')]);
    expect(withoutEscapes('\u001b[31mred\u001b[0m')).toBe('red');
  });
});

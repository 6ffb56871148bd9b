import { describe, expect, it } from 'vitest';
import { linesOf } from '../../../api/forms/lines';
import { ChatReader, EventData, embeddingsOf, errorOf, modelsOf, TextReader } from './readers';
import { chatCall, isPath, usualMode } from './requests';

const piece = (content: string, more = {}) =>
  `data: ${JSON.stringify({ choices: [{ delta: { content }, ...more }] })}\n\n`;

describe('EventData', () => {
  it.each([
    [
      ['data: a\n\nda', 'ta: b\n', '\n'],
      ['a', 'b'],
    ],
    [
      ['data: a\r', '\n\r\ndata:b\r\n'],
      ['a', 'b'],
    ],
    [[': ping\nevent: x\nid: 1\ndata: c\n'], ['c']],
  ])('%j', (pieces, data) => {
    const events = new EventData();
    expect(pieces.flatMap((text) => events.feed(text))).toEqual(data);
  });
});

describe('ChatReader', () => {
  function read(...pieces: [string, number][]) {
    const reader = new ChatReader();
    reader.begin(200, 'text/event-stream; charset=utf-8');
    for (const [text, ms] of pieces) reader.feed(text, ms);
    reader.end();
    return reader.view();
  }
  it('joins tokens and measures the first and the rate', () => {
    const shown = read(
      [piece(''), 50],
      [piece('Hel'), 200],
      [piece('lo') + piece('!'), 700],
      ['data: [DONE]\n\n', 900],
    );
    expect(shown).toMatchObject({ text: 'Hello!', firstMs: 200, tokens: 3, isCounted: false, tokensPerSecond: 4 });
  });
  it('believes the count of the service', () => {
    const usage = 'data: {"choices":[],"usage":{"completion_tokens":11}}\n\n';
    expect(read([piece('a'), 0], [piece('b'), 500], [usage, 510])).toMatchObject({
      tokens: 11,
      isCounted: true,
      tokensPerSecond: 20,
    });
  });
  it('tells a cut answer, what was thought, and a last line without its end', () => {
    const last = piece('x', { finish_reason: 'length' }).trimEnd();
    const thought = 'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n';
    expect(read([thought, 1], [last, 2])).toMatchObject({ text: 'x', thought: 'hm', isCut: true, firstMs: 1 });
  });
  it('tells an error in mid-stream, and is not moved by what is no JSON', () => {
    const shown = read([
      `${piece('a')}data: {oops\n\ndata: null\n\ndata: 3\n\ndata: {"error":{"message":"no memory"}}\n\n`,
      1,
    ]);
    expect(shown).toMatchObject({ text: 'a', error: 'no memory', tokensPerSecond: null });
  });
  it('reads an answer that is not streamed', () => {
    const reader = new ChatReader();
    reader.begin(200, 'application/json');
    reader.feed('{"choices":[{"message":{"content":"whole"}}],', 1);
    reader.feed('"usage":{"completion_tokens":2}}', 2);
    reader.end();
    expect(reader.view()).toMatchObject({
      text: 'whole',
      tokens: 2,
      firstMs: null,
      tokensPerSecond: null,
      error: null,
    });
  });
  it.each([
    [400, '{"error":{"message":"too long"}}', 'too long'],
    [404, '', 'HTTP 404'],
    [200, '<html>hello</html>', '<html>hello</html>'],
  ])('%d %s', (status, body, error) => {
    const reader = new ChatReader();
    reader.begin(status, status === 400 ? 'text/event-stream' : 'text/html');
    reader.feed(body, 1);
    reader.end();
    expect(reader.view()).toMatchObject({ text: '', error });
  });
});

describe('answers', () => {
  it.each([
    ['{"error":"plain"}', 'plain'],
    ['{"detail":"of a framework"}', 'of a framework'],
    ['{"title":"Refused"}', 'Refused'],
    ['no JSON', 'no JSON'],
  ])('the error of %s', (body, error) => expect(errorOf(body)).toBe(error));
  it('of models, without those that have no name', () => {
    expect(modelsOf('{"data":[{"id":"a"},{"id":"a"},{"id":3},null,"x"]}')).toEqual(['a']);
    expect(modelsOf('{"data":{}}')).toEqual([]);
    expect(modelsOf('nothing')).toEqual([]);
  });
  it('of embeddings, one for each text, by their likeness to the first', () => {
    const body = JSON.stringify({ data: [{ embedding: [1, 0] }, { embedding: [0, 2] }, { embedding: [3, 0] }] });
    expect(embeddingsOf(['a', 'b', 'c'], body)?.map(({ likeness }) => likeness)).toEqual([1, 0, 1]);
    expect(embeddingsOf(['a'], body)).toBeNull();
    expect(embeddingsOf(['a'], '{"data":[{"embedding":["1"]}]}')).toBeNull();
  });
  it('that are no text are told apart', () => {
    const reader = new TextReader();
    reader.feed('a\0b');
    expect(reader.view().isText).toBe(false);
  });
});

describe('requests', () => {
  it('of a chat have what was set, and no more', () => {
    const call = chatCall({ model: 'm', system: ' ', temperature: '', maxTokens: 5 }, [
      { role: 'user', content: 'hi' },
    ]);
    expect(JSON.parse(call.body ?? '')).toEqual({
      model: 'm',
      messages: [{ role: 'user', content: 'hi' }],
      max_tokens: 5,
      stream: true,
      stream_options: { include_usage: true },
    });
    const other = chatCall({ model: 'm', system: 'be brief', temperature: 0, maxTokens: '' }, []);
    expect(JSON.parse(other.body ?? '')).toMatchObject({
      messages: [{ role: 'system', content: 'be brief' }],
      temperature: 0,
    });
  });
  it('of texts by line', () => expect(linesOf('a\n\n b \n')).toEqual(['a', 'b']));
  it.each([
    [[], 'request'],
    [['llama'], 'chat'],
    [['tiny-embedding'], 'embeddings'],
    [['llama', 'tiny-embedding'], 'chat'],
  ])('the usual mode of %j', (models, mode) => expect(usualMode(models)).toBe(mode));
  it.each([
    ['/', true],
    ['/v1/models?a=..%2f', true],
    ['/.well-known/x', true],
    ['', false],
    ['v1', false],
    ['/a/../b', false],
    ['/a/%2E%2e', false],
    ['/a b', false],
    ['/a#b', false],
  ])('path %s', (path, isOne) => expect(isPath(path)).toBe(isOne));
});

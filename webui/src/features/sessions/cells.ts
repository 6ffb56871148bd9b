import { asProblem, type Problem } from '../../api/problems';
import { appendOutput, imageOf, type Output } from '../../components/outputs';

/** One step of a run, as the manager answers it (spec 03-07, Execution Result Object). */
export interface RunStep {
  runId: string;
  status: string;
  exitCode: number | null;
  console: readonly unknown[];
  options?: Record<string, unknown> | null;
}

export interface StepRequest {
  mode: 'query' | 'continue' | 'input';
  code: string;
  runId: string;
}

export type CellState = 'new' | 'queued' | 'running' | 'input' | 'done' | 'failed';

export interface Cell {
  id: number;
  code: string;
  state: CellState;
  outputs: readonly Output[];
  /** The order in which cells were run, from 1; 0 before. */
  number: number;
  /** Seconds that the last run took; null before its end. */
  seconds: number | null;
  problem: Problem | null;
  /** True where the program waits for a secret, which is not shown. */
  isSecret: boolean;
}

/** Returns an item of a run's console as output; null for kinds that this console does not know. */
export function outputOf(item: unknown): Output | null {
  if (!Array.isArray(item)) return null;
  const [kind, data] = item as [unknown, unknown];
  if ((kind === 'stdout' || kind === 'stderr') && typeof data === 'string')
    return { kind: 'text', stream: kind, text: data };
  if (kind === 'html' && typeof data === 'string') return { kind: 'html', html: data };
  if (kind !== 'media' || !Array.isArray(data)) return null;
  const [type, content] = data as unknown[];
  if (typeof type !== 'string' || typeof content !== 'string') return null;
  if (type === 'text/html') return { kind: 'html', html: content };
  return (
    imageOf(type, content) ?? (type.startsWith('text/') ? { kind: 'text', stream: 'stdout', text: content } : null)
  );
}

const mostOutputCharacters = 20_000_000;

function sizeOf(output: Output): number {
  return output.kind === 'text' ? output.text.length : output.kind === 'html' ? output.html.length : output.url.length;
}

interface Options {
  step: (request: StepRequest) => Promise<RunStep>;
  now?: () => number;
  newRunId?: () => string;
}

/**
 * The cells of a session. They run one after the other, in the order in which they were asked for, as the program of
 * the session does one thing at a time. Runs go on while other pages are shown.
 */
export class CellBook {
  private cells: readonly Cell[] = [];
  private readonly listeners = new Set<() => void>();
  private readonly queue: number[] = [];
  private isWorking = false;
  private isStopped = false;
  private nextId = 1;
  private nextNumber = 1;
  private giveInput: ((text: string) => void) | null = null;

  constructor(private readonly options: Options) {
    this.add();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  snapshot = (): readonly Cell[] => this.cells;

  /** Adds an empty cell at the end and returns its id. */
  add(): number {
    const id = this.nextId;
    this.nextId += 1;
    const cell: Cell = {
      id,
      code: '',
      state: 'new',
      outputs: [],
      number: 0,
      seconds: null,
      problem: null,
      isSecret: false,
    };
    this.become([...this.cells, cell]);
    return id;
  }

  write(id: number, code: string): void {
    this.change(id, { code });
  }

  /** Removes a cell that does not run; the last one is emptied instead. */
  remove(id: number): void {
    if (this.isBusy(id)) return;
    this.become(this.cells.filter((cell) => cell.id !== id));
    if (this.cells.length === 0) this.add();
  }

  /** Runs a cell after those that were asked for before. Has no effect on one that waits or runs, or is empty. */
  async run(id: number): Promise<void> {
    const cell = this.cells.find((each) => each.id === id);
    if (cell === undefined || cell.code.trim() === '' || this.isBusy(id)) return;
    this.queue.push(id);
    this.change(id, { state: 'queued', problem: null });
    if (this.cells.at(-1)?.id === id) this.add();
    if (this.isWorking) return;
    this.isWorking = true;
    for (let next = this.queue.shift(); next !== undefined; next = this.queue.shift()) await this.runOne(next);
    this.isWorking = false;
  }

  /** Gives the running program the line that it waits for. */
  input(text: string): void {
    this.giveInput?.(text);
  }

  /** Forgets the cells that wait for their turn; the one that runs goes on. */
  forgetQueue(): void {
    for (const id of this.queue.splice(0)) this.change(id, { state: 'new' });
    this.giveInput?.('');
  }

  /** Asks for nothing more, neither for the cell that runs nor for others: whoever is here next does not go on. */
  stop(): void {
    this.isStopped = true;
    this.forgetQueue();
  }

  private isBusy(id: number): boolean {
    const state = this.cells.find((cell) => cell.id === id)?.state;
    return state === 'queued' || state === 'running' || state === 'input';
  }

  private async runOne(id: number): Promise<void> {
    const now = this.options.now ?? (() => performance.now());
    const started = now();
    const code = this.cells.find((cell) => cell.id === id)?.code ?? '';
    this.change(id, { state: 'running', outputs: [], seconds: null, number: this.nextNumber });
    this.nextNumber += 1;
    try {
      let request: StepRequest = {
        mode: 'query',
        code,
        runId: this.options.newRunId?.() ?? crypto.randomUUID().replaceAll('-', ''),
      };
      while (!this.isStopped) {
        const step = await this.options.step(request);
        this.show(id, step.console);
        if (step.status === 'finished' || step.status === 'exec-timeout') {
          const isDone = step.status === 'finished' && !step.exitCode && step.options?.raised !== true;
          this.change(id, { state: isDone ? 'done' : 'failed' });
          break;
        }
        if (step.status === 'waiting-input') {
          const line = await this.askInput(id, step.options?.is_password === true);
          request = { mode: 'input', code: line, runId: step.runId };
        } else request = { mode: 'continue', code: '', runId: step.runId };
      }
    } catch (error) {
      this.change(id, { state: 'failed', problem: asProblem(error) });
    }
    this.change(id, { seconds: (now() - started) / 1000 });
  }

  private async askInput(id: number, isSecret: boolean): Promise<string> {
    this.change(id, { state: 'input', isSecret });
    const text = await new Promise<string>((resolve) => {
      this.giveInput = resolve;
    });
    this.giveInput = null;
    this.change(id, { state: 'running', isSecret: false });
    return text;
  }

  private show(id: number, items: readonly unknown[]): void {
    let outputs = this.cells.find((cell) => cell.id === id)?.outputs ?? [];
    let used = outputs.reduce((sum, output) => sum + sizeOf(output), 0);
    for (const item of items) {
      const output = outputOf(item);
      if (output === null || used > mostOutputCharacters) continue;
      outputs = appendOutput(outputs, output);
      used += sizeOf(output);
    }
    this.change(id, { outputs });
  }

  private change(id: number, part: Partial<Cell>): void {
    this.become(this.cells.map((cell) => (cell.id === id ? { ...cell, ...part } : cell)));
  }

  private become(cells: readonly Cell[]): void {
    this.cells = cells;
    for (const listener of this.listeners) listener();
  }
}

import { prove } from './login';

/**
 * Asks for a recent proof of who is there, for requests that the manager refuses without one.
 *
 * Requests that are refused at the same time wait for one proof.
 */
class ProofRequests {
  private waiting: ((isProved: boolean) => void)[] = [];
  private readonly listeners = new Set<() => void>();

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly isWanted = (): boolean => this.waiting.length > 0;

  /** Returns true once somebody has given a proof, false if they would not, or if nobody is asked on this page. */
  obtain(): Promise<boolean> {
    if (this.listeners.size === 0) return Promise.resolve(false);
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      this.notify();
    });
  }

  /** Gives a proof to the web server, which keeps it, and lets the requests go on. Throws Problem. */
  async give(proof: { password: string } | { otp: string }): Promise<void> {
    await prove(proof);
    this.settle(true);
  }

  /** Refuses to give a proof: what waits for it fails. */
  refuse(): void {
    this.settle(false);
  }

  private settle(isProved: boolean): void {
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve(isProved);
    this.notify();
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }
}

export const proofs = new ProofRequests();

/** The last part of the type of a refusal for the lack of a proof. */
export const proofRequired = 'proof-required';

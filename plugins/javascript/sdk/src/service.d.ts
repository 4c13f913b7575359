/** A service of the rollout that the engine answers itself, such as a mock web application, asked with the engine's key. */
export class Service {
  /** The service that the task names so in `services`. */
  constructor(name: string);
  /** What `GET` of a path answers, as JSON. A status of 400 or more is an `invalid` failure with what the service says. */
  get(path: string): any;
  /** What `POST` to a path answers, as JSON; failures as those of `get`. */
  post(path: string, body?: object): any;
  /** The answer as it is: whatever its status, with a body of bytes. */
  request(
    method: 'GET' | 'POST',
    path: string,
    body?: string | Uint8Array,
  ): { status: number; contentType: string; body: Uint8Array; extra: any };
}

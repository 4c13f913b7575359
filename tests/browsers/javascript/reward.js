import { Failure, Service, openBrowser, reward } from 'espalier-sdk/reward';

function failureOf(call) {
  try {
    call();
  } catch (failure) {
    if (failure instanceof Failure) return failure;
    throw failure;
  }
  throw new Error('it did not fail');
}

export default reward({
  score() {
    const browser = openBrowser();
    const shop = new Service('shop');
    const title = browser.evaluateIsolated('document.title');
    const { code } = failureOf(() => browser.evaluate('missing'));
    const { message } = failureOf(() => shop.get('/none'));
    const { found } = shop.post('/find', { name: 'lamp' });
    return { value: found * shop.get('/go').state.orders.length, reason: `${title}, ${code}, ${message}` };
  },
});
